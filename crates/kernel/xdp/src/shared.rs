//! BPF arrays mapped into memory. Programs read and write them at the same time, so every access is atomic.
//!
//! An element is copied word by word with relaxed accesses. What makes it visible as a whole is its generation, the first word of
//! slots and next hops: `retire` before a change, `publish` after it. The same order holds on every architecture.

use crate::plain::{Plain, bytes_of, from_bytes};
use crate::{Error, Result};
use std::marker::PhantomData;
use std::mem::{align_of, size_of};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// `count` elements of T in memory that is shared with the kernel.
pub struct Shared<T> {
    base: NonNull<u8>,
    length: usize,
    count: usize,
    element: PhantomData<T>,
}

// SAFETY: the memory belongs to the mapping, which only drop() ends, and is accessed through atomics alone.
unsafe impl<T: Plain> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Plain> Sync for Shared<T> {}

impl<T: Plain> Shared<T> {
    /// Map the first `count` elements of an array made with BPF_F_MMAPABLE.
    ///
    /// # Errors
    /// When the kernel does not map it.
    pub fn map(map: impl AsFd, count: usize) -> Result<Self> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8) };
        let length = (count * size_of::<T>()).max(1);
        // SAFETY: a new mapping at an address of the kernel's choice touches no other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                map.as_fd().as_raw_fd(),
                0,
            )
        };
        match NonNull::new(base.cast::<u8>()) {
            Some(base) if base.as_ptr().cast() != libc::MAP_FAILED => Ok(Self {
                base,
                length,
                count,
                element: PhantomData,
            }),
            _ => Err(Error::last(format!("cannot map an array of {length} bytes"))),
        }
    }

    /// How many elements there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    fn place<A>(&self, index: usize, offset: usize) -> *mut A {
        let at = index * size_of::<T>() + offset;
        assert!(
            index < self.count && offset + size_of::<A>() <= size_of::<T>() && at.is_multiple_of(size_of::<A>()),
            "element {index} of {}, offset {offset}",
            self.count
        );
        // SAFETY: the bounds were checked right above.
        unsafe { self.base.as_ptr().add(at).cast() }
    }

    /// One byte of an element.
    #[must_use]
    pub fn u8_at(&self, index: usize, offset: usize) -> &AtomicU8 {
        // SAFETY: place() is in bounds and aligned, and the mapping lives as long as self.
        unsafe { AtomicU8::from_ptr(self.place(index, offset)) }
    }

    /// Two bytes of an element.
    #[must_use]
    pub fn u16_at(&self, index: usize, offset: usize) -> &AtomicU16 {
        // SAFETY: as in u8_at.
        unsafe { AtomicU16::from_ptr(self.place(index, offset)) }
    }

    /// Four bytes of an element.
    #[must_use]
    pub fn u32_at(&self, index: usize, offset: usize) -> &AtomicU32 {
        // SAFETY: as in u8_at.
        unsafe { AtomicU32::from_ptr(self.place(index, offset)) }
    }

    /// Eight bytes of an element.
    #[must_use]
    pub fn u64_at(&self, index: usize, offset: usize) -> &AtomicU64 {
        // SAFETY: as in u8_at.
        unsafe { AtomicU64::from_ptr(self.place(index, offset)) }
    }

    /// A copy of an element as it stands. A program may be writing it: fields need not belong together.
    #[must_use]
    pub fn load(&self, index: usize) -> T {
        const WORDS: usize = 512;
        const { assert!(size_of::<T>() <= WORDS * 8) };
        let mut words = [0u64; WORDS];
        let used = &mut words[..size_of::<T>() / 8];
        for (n, word) in used.iter_mut().enumerate() {
            *word = self.u64_at(index, n * 8).load(Ordering::Relaxed);
        }
        // SAFETY: the words are size_of::<T>() initialised bytes, and any bytes are a T.
        unsafe { std::ptr::read_unaligned(used.as_ptr().cast()) }
    }

    /// Write a whole element.
    pub fn store(&self, index: usize, value: &T) {
        self.store_range(index, value, 0..size_of::<T>());
    }

    /// Write these bytes of an element, which begin and end at multiples of four.
    pub fn store_range(&self, index: usize, value: &T, range: Range<usize>) {
        let bytes = bytes_of(value);
        let mut at = range.start;
        while at < range.end {
            if at.is_multiple_of(8) && range.end - at >= 8 {
                let word = from_bytes::<u64>(&bytes[at..]).unwrap_or_default();
                self.u64_at(index, at).store(word, Ordering::Relaxed);
                at += 8;
            } else {
                let word = from_bytes::<u32>(&bytes[at..]).unwrap_or_default();
                self.u32_at(index, at).store(word, Ordering::Relaxed);
                at += 4;
            }
        }
    }

    /// The generation of an element whose first word it is; odd while the element is valid.
    #[must_use]
    pub fn generation(&self, index: usize) -> u32 {
        self.u32_at(index, 0).load(Ordering::Acquire)
    }

    /// Make an element invalid before it is changed. One that is invalid stays so.
    pub fn retire(&self, index: usize) {
        let generation = self.u32_at(index, 0);
        let value = generation.load(Ordering::Relaxed);
        if value & 1 == 1 {
            generation.store(value.wrapping_add(1), Ordering::Relaxed);
        }
        // What is written from here on is seen after the generation.
        fence(Ordering::Release);
    }

    /// Make an element valid, after all of it has been written. One that is valid stays so.
    pub fn publish(&self, index: usize) {
        let generation = self.u32_at(index, 0);
        let value = generation.load(Ordering::Relaxed);
        generation.store(value.wrapping_add(1) | 1, Ordering::Release);
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: this mapping was made by map(), and no reference into it outlives self.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.length) };
    }
}
