//! Walks: long scans in bounded steps.

/// One step of a walk: from where it resumes, and how many it looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Walk<P> {
    /// Behind this place; `None` means from the beginning.
    pub after: Option<P>,
    pub limit: u32,
}
