//! What becomes of memory that this process has freed.

/// Give the memory of large requests back to the kernel when they are done with. To be called before there are threads.
///
/// By itself glibc keeps up to 64 MiB free in each of the heaps that threads have of their own, once a block that large has been freed.
pub fn return_freed_memory() {
    const HEAPS: i32 = 2;
    const THRESHOLD: i32 = 256 << 10; // bytes
    #[cfg(target_env = "gnu")]
    for (parameter, value) in [
        (libc::M_ARENA_MAX, HEAPS),
        (libc::M_MMAP_THRESHOLD, THRESHOLD),
        (libc::M_TRIM_THRESHOLD, THRESHOLD),
    ] {
        // SAFETY: the parameters are mallopt(3)'s; it changes nothing that has been allocated.
        unsafe { libc::mallopt(parameter, value) };
    }
}
