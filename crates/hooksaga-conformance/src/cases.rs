//! Turns a list of cases into tests.

/// Expands a list into the module `$module`; not for use elsewhere. `$root` is where the modules of the cases are.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_cases {
    ($module:ident, [$($root:tt)+], $fresh:path; $($subject:ident { $($case:ident),+ $(,)? })+) => {
        mod $module {
            use $($root)+ as cases;

            $(mod $subject {
                $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    let db = $fresh().await;
                    $crate::run(Box::pin(super::cases::$subject::$case(&db))).await;
                })+
            })+
        }
    };
}
