//! Types that are nothing but bytes: what maps hold.

use shunt_abi::{relay, replicate};
use std::mem::{MaybeUninit, size_of};

/// A type that any bytes are a value of, without padding.
///
/// # Safety
/// The implementer has no padding, no pointers, and no invalid bit patterns.
pub unsafe trait Plain: Copy + Send + 'static {}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {
        // SAFETY: these are C structs of integers and arrays of them, whose padding is spelled out as members; BTF has no others.
        $(unsafe impl Plain for $type {})*
    };
}

plain!(u8, u16, u32, u64);
plain!(
    relay::address4,
    relay::address6,
    relay::capture,
    relay::detail,
    relay::endpoint,
    relay::flow_key,
    relay::greylist,
    relay::layout_mark,
    relay::media_range,
    relay::nexthop,
    relay::notice,
    relay::own_mac,
    relay::path_mtu_report,
    relay::overflow_entry,
    relay::port_set,
    relay::settings,
    relay::slot,
    relay::source_filter,
    relay::totals,
    relay::wide,
    replicate::agent_copy,
    replicate::agent_counts,
    replicate::conference_mark,
    replicate::copy,
    replicate::copy_wide,
    replicate::layer,
    replicate::list_device,
    replicate::list_element,
    replicate::list_head,
    replicate::node,
    replicate::prune,
    replicate::receiver,
    replicate::reception,
    replicate::stream,
    replicate::stream_key,
    replicate::track,
);

/// The bytes of a value.
#[must_use]
pub fn bytes_of<T: Plain>(value: &T) -> &[u8] {
    // SAFETY: T is plain: all of its bytes are initialised, and it lives as long as the slice.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// A value from its bytes; None when there are fewer than it has. Further ones are left alone.
#[must_use]
pub fn from_bytes<T: Plain>(bytes: &[u8]) -> Option<T> {
    let bytes = bytes.get(..size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: the source has size_of::<T>() bytes, the target room for them, and any bytes are a T.
    unsafe {
        std::ptr::copy_nonoverlapping(bytes.as_ptr(), value.as_mut_ptr().cast(), size_of::<T>());
        Some(value.assume_init())
    }
}
