//! The end of the process, once all that it had to do is done. It must not know what that was.

/// Exit code of a process that left before its run's end, whether it left in time or had to be ended.
pub const LEFT: u8 = 75;

/// Ends the process with this code, at once.
///
/// An ordinary exit first runs what libraries have registered for it, while other threads go on. A graphics driver's may be
/// compiling a kernel then, and falls with what is taken down under it: a process that has done all that it should would
/// end by a signal, and a queue would take it for broken. (Mesa's lavapipe, as in Debian 12, with a cold cache: five times
/// of five.) Rust's buffers are not flushed, because another thread may hold their locks.
pub(crate) fn end_process(code: u8) -> ! {
    #[cfg(unix)]
    // SAFETY: it takes a number and does not return, and the system closes all files.
    unsafe {
        libc::_exit(code.into())
    }
    #[cfg(not(unix))]
    std::process::exit(code.into())
}

/// Has a process of tests end like that, with the code that they give, whatever a driver that is there already has registered.
#[cfg(test)]
pub(crate) fn end_tests_at_once() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            /// The C library's: a function that an ordinary exit calls with the process's code.
            fn on_exit(
                function: extern "C" fn(libc::c_int, *mut libc::c_void),
                argument: *mut libc::c_void,
            ) -> libc::c_int;
        }
        extern "C" fn end(code: libc::c_int, _: *mut libc::c_void) {
            // SAFETY: as above. The test runner has written all its lines.
            unsafe { libc::_exit(code) }
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: `end` lives as long as the process, and needs no argument. The handler that was registered last runs first.
        ONCE.call_once(|| unsafe {
            on_exit(end, std::ptr::null_mut());
        });
    }
}
