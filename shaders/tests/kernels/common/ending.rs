//! The end of a test's process.

/// Has the process end at once when its tests are over, with the code that they give.
///
/// An ordinary exit first runs the handlers that libraries have registered, while other threads go on. A graphics driver
/// that still compiles a kernel then crashes (Mesa's lavapipe of Debian 12 with a cold cache: five times of five), and
/// tests that have all passed end by a signal.
pub fn leave_the_driver_alone() {
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
            // SAFETY: it takes a number and does not return. The test runner has written all its lines.
            unsafe { libc::_exit(code) }
        }
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: `end` lives as long as the process, and needs no argument. The handler that was registered last runs first, so
        // before anything of the driver, which has registered already.
        ONCE.call_once(|| unsafe {
            on_exit(end, std::ptr::null_mut());
        });
    }
}
