//! Hash maps and per-CPU arrays of the kernel, by their types.

use crate::plain::{Plain, bytes_of, from_bytes};
use crate::{Error, Result, error::from_libbpf};
use libbpf_rs::{MapInfo, libbpf_sys};
use std::ffi::c_void;
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

const BATCH: usize = 4096;
const LARGEST_BATCH: usize = 1 << 20;
/// The kernel's own number for an operation that a kind of map does not have.
const ENOTSUPP: i32 = 524;

fn own(map: impl AsFd) -> Result<OwnedFd> {
    map.as_fd()
        .try_clone_to_owned()
        .map_err(|error| Error::new("cannot duplicate a file descriptor", error))
}

fn void<T: Plain>(value: &T) -> *const c_void {
    bytes_of(value).as_ptr().cast()
}

fn batch_options() -> libbpf_sys::bpf_map_batch_opts {
    libbpf_sys::bpf_map_batch_opts {
        sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
        ..Default::default()
    }
}

/// The outcome of a write to a hash map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Done,
    /// The map has as many elements as it may have, or the kernel no memory.
    Full,
}

/// Where a scan over a hash map is that reads it in batches.
#[derive(Default)]
pub struct Scan {
    position: Option<Vec<u8>>,
    ended: bool,
}

/// A hash map from K to V.
pub struct Hash<K, V> {
    fd: OwnedFd,
    name: String,
    capacity: u32,
    element: PhantomData<fn() -> (K, V)>,
}

impl<K: Plain, V: Plain> Hash<K, V> {
    /// # Errors
    /// When this is no such map.
    pub fn new(map: impl AsFd) -> Result<Self> {
        let info = MapInfo::new(map.as_fd()).map_err(|error| from_libbpf("cannot read a map's info", &error))?;
        let name = info.name().unwrap_or_default().to_owned();
        let (key, value) = (info.info.key_size as usize, info.info.value_size as usize);
        if key != size_of::<K>() || value != size_of::<V>() {
            let what = format!("map {name} has keys of {key} and values of {value} bytes");
            return Err(Error::new(what, io::ErrorKind::InvalidData));
        }
        Ok(Self {
            fd: own(map)?,
            name,
            capacity: info.info.max_entries,
            element: PhantomData,
        })
    }

    /// # Errors
    /// When the kernel cannot be asked; an absent key is no error.
    pub fn get(&self, key: &K) -> Result<Option<V>> {
        let mut value = vec![0u8; size_of::<V>()];
        // SAFETY: key and value have the sizes of the map's, as new() has checked.
        let result = unsafe { libbpf_sys::bpf_map_lookup_elem(self.fd.as_raw_fd(), void(key), value.as_mut_ptr().cast()) };
        if result == 0 {
            return Ok(from_bytes(&value));
        }
        let error = Error::last(format!("cannot read map {}", self.name));
        if error.errno() == libc::ENOENT { Ok(None) } else { Err(error) }
    }

    /// # Errors
    /// When the kernel takes no write, for another reason than room.
    pub fn put(&self, key: &K, value: &V) -> Result<Put> {
        Ok(self.update(key, value, libbpf_sys::BPF_ANY)?.unwrap_or(Put::Done))
    }

    /// Put an element in whose key is not there; None, and nothing is done, when it is.
    ///
    /// # Errors
    /// When the kernel takes no write, for another reason than room.
    pub fn insert(&self, key: &K, value: &V) -> Result<Option<Put>> {
        self.update(key, value, libbpf_sys::BPF_NOEXIST)
    }

    fn update(&self, key: &K, value: &V, flags: u32) -> Result<Option<Put>> {
        // SAFETY: key and value have the sizes of the map's, as new() has checked.
        let result = unsafe { libbpf_sys::bpf_map_update_elem(self.fd.as_raw_fd(), void(key), void(value), flags.into()) };
        if result == 0 {
            return Ok(Some(Put::Done));
        }
        let error = Error::last(format!("cannot write map {}", self.name));
        match error.errno() {
            libc::E2BIG | libc::ENOMEM | libc::ENOSPC => Ok(Some(Put::Full)),
            libc::EEXIST => Ok(None),
            _ => Err(error),
        }
    }

    /// Whether the key was there.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn delete(&self, key: &K) -> Result<bool> {
        // SAFETY: the key has the size of the map's, as new() has checked.
        let result = unsafe { libbpf_sys::bpf_map_delete_elem(self.fd.as_raw_fd(), void(key)) };
        if result == 0 {
            return Ok(true);
        }
        let error = Error::last(format!("cannot delete from map {}", self.name));
        if error.errno() == libc::ENOENT { Ok(false) } else { Err(error) }
    }

    /// Delete elements; those that are not there are passed over.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn delete_all(&self, keys: &[K]) -> Result<()> {
        let options = batch_options();
        let mut left = keys;
        while !left.is_empty() {
            let mut count = u32::try_from(left.len()).unwrap_or(u32::MAX);
            // SAFETY: there are `count` keys of the size of the map's, as new() has checked.
            let result =
                unsafe { libbpf_sys::bpf_map_delete_batch(self.fd.as_raw_fd(), left.as_ptr().cast(), &raw mut count, &raw const options) };
            if result == 0 {
                return Ok(());
            }
            let error = Error::last(format!("cannot delete from map {}", self.name));
            if error.errno() != libc::ENOENT {
                return Err(error);
            }
            // The kernel stops at a key that is not there.
            left = left.get(count as usize + 1..).unwrap_or_default();
        }
        Ok(())
    }

    /// All elements, read in batches. Elements that come or go meanwhile may be missed.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn elements(&self) -> Result<Vec<(K, V)>> {
        let mut found = Vec::new();
        let mut scan = Scan::default();
        while let Some(batch) = self.batch(&mut scan, BATCH)? {
            found.extend(batch);
        }
        Ok(found)
    }

    /// Go on with a scan: the next elements, about `size` of them; None at its end. Elements that are there all the time come exactly once.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn batch(&self, scan: &mut Scan, size: usize) -> Result<Option<Vec<(K, V)>>> {
        if scan.ended {
            return Ok(None);
        }
        let options = batch_options();
        let mut size = size;
        loop {
            let mut keys = vec![0u8; size * size_of::<K>()];
            let mut values = vec![0u8; size * size_of::<V>()];
            let mut count = size as u32;
            let mut next = vec![0u8; size_of::<K>().max(8)];
            let from = scan
                .position
                .as_mut()
                .map_or(std::ptr::null_mut(), |position| position.as_mut_ptr().cast());
            // SAFETY: there is room for `count` keys and values, and `position` holds what the kernel left in `next`.
            let result = unsafe {
                libbpf_sys::bpf_map_lookup_batch(
                    self.fd.as_raw_fd(),
                    from,
                    next.as_mut_ptr().cast(),
                    keys.as_mut_ptr().cast(),
                    values.as_mut_ptr().cast(),
                    &raw mut count,
                    &raw const options,
                )
            };
            let error = Error::last(format!("cannot read map {}", self.name));
            let last = result != 0 && error.errno() == libc::ENOENT;
            if result != 0 && error.errno() == libc::ENOSPC && size < LARGEST_BATCH {
                size *= 4; // one bucket holds more than the batch
                continue;
            }
            if result != 0 && !last {
                return Err(error);
            }
            scan.position = Some(next);
            scan.ended = last;
            let pairs = keys.chunks_exact(size_of::<K>()).zip(values.chunks_exact(size_of::<V>()));
            let found: Vec<(K, V)> = pairs
                .take(count as usize)
                .filter_map(|(key, value)| Some((from_bytes(key)?, from_bytes(value)?)))
                .collect();
            return Ok(if last && found.is_empty() { None } else { Some(found) });
        }
    }

    /// How many elements there may be.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }
}

/// A per-CPU array with elements of V, whose size is a multiple of eight.
pub struct PerCpu<V> {
    fd: OwnedFd,
    element: PhantomData<fn() -> V>,
}

impl<V: Plain> PerCpu<V> {
    /// # Errors
    /// When the map cannot be opened.
    pub fn new(map: impl AsFd) -> Result<Self> {
        const { assert!(size_of::<V>().is_multiple_of(8)) };
        Ok(Self {
            fd: own(map)?,
            element: PhantomData,
        })
    }

    /// The values of one element, one for each possible CPU.
    ///
    /// # Errors
    /// When the kernel cannot be asked.
    pub fn get(&self, index: u32) -> Result<Vec<V>> {
        let cpus = libbpf_rs::num_possible_cpus().map_err(|error| from_libbpf("cannot count CPUs", &error))?;
        let mut room = vec![0u8; cpus * size_of::<V>()];
        // SAFETY: the kernel writes a value for each possible CPU, for which there is room.
        let result = unsafe { libbpf_sys::bpf_map_lookup_elem(self.fd.as_raw_fd(), void(&index), room.as_mut_ptr().cast()) };
        if result != 0 {
            return Err(Error::last("cannot read per-CPU counters"));
        }
        Ok(room.chunks_exact(size_of::<V>()).filter_map(from_bytes).collect())
    }
}

/// Put a map into an array of maps. The kernel returns once no program uses the former one.
///
/// # Errors
/// When the kernel takes no write.
pub fn set_inner_map(outer: impl AsFd, index: u32, inner: impl AsFd) -> Result<()> {
    let fd = u32::try_from(inner.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
    // SAFETY: keys and values of an array of maps have four bytes.
    let result = unsafe { libbpf_sys::bpf_map_update_elem(outer.as_fd().as_raw_fd(), void(&index), void(&fd), 0) };
    if result == 0 {
        Ok(())
    } else {
        Err(Error::last(format!("cannot set row {index} of an array of maps")))
    }
}

/// Put maps into rows of an array of maps, at one call of the kernel.
///
/// The call returns once no program uses the former maps. Kernels before 6.8 wait for each row by itself.
///
/// # Errors
/// When the kernel takes no write. Some rows may be set then.
pub fn set_inner_maps(outer: impl AsFd, rows: &[(u32, BorrowedFd<'_>)]) -> Result<()> {
    let indexes: Vec<u32> = rows.iter().map(|(index, _)| *index).collect();
    let maps: Vec<u32> = rows
        .iter()
        .map(|(_, map)| u32::try_from(map.as_raw_fd()).unwrap_or(u32::MAX))
        .collect();
    let mut count = u32::try_from(rows.len()).unwrap_or(u32::MAX);
    let options = batch_options();
    // SAFETY: there are `count` keys and values of four bytes each.
    let result = unsafe {
        libbpf_sys::bpf_map_update_batch(
            outer.as_fd().as_raw_fd(),
            indexes.as_ptr().cast(),
            maps.as_ptr().cast(),
            &raw mut count,
            &raw const options,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let error = Error::last(format!("cannot set {} rows of an array of maps", rows.len()));
    if error.errno() != ENOTSUPP {
        return Err(error);
    }
    // Before 5.19 the kernel takes no batch for arrays of maps.
    rows.iter().try_for_each(|(index, map)| set_inner_map(outer.as_fd(), *index, map))
}
