//! Long scans in bounded steps.

/// One step of a scan: where it resumes, and how many rows it reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanStep<P> {
    /// Behind this place; `None` means from the beginning.
    pub after: Option<P>,
    pub limit: u32,
}
