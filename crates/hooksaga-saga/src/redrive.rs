//! What one bounded step of a redrive does with the rows that it examines.

/// What a redrive does with one row that it scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is not what was asked for: another tenant's, another type, another code. It is passed, and not counted.
    Pass,
    /// It is what was asked for, and nothing is to be made of it: it was sent already, or cannot be delivered now.
    Skip,
    /// A saga is to be made of it.
    Send,
}

/// What one step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chosen<K> {
    /// The rows to make sagas of, in the order of the scan.
    pub send: Vec<K>,
    /// Rows that were asked for: those to send, and those that are skipped.
    pub examined: u64,
    pub skipped: u64,
    /// Where the next step resumes: behind this row. Nothing if the step looked at no row.
    pub reached: Option<K>,
    /// No row is left.
    pub is_end: bool,
}

/// Takes the rows of a scan in their order until `most` are to be sent. `is_end` says that there are no rows behind these.
///
/// Every row is either taken or left for the next step, whole: the progress that is stored with the sagas of a step
/// is the last row that was taken.
pub fn choose<K: Copy>(rows: &[(K, Fate)], most: usize, is_end: bool) -> Chosen<K> {
    let mut chosen = Chosen { send: Vec::new(), examined: 0, skipped: 0, reached: None, is_end };
    for (key, fate) in rows {
        match fate {
            Fate::Pass => {}
            Fate::Skip => {
                chosen.examined += 1;
                chosen.skipped += 1;
            }
            // A step that could send nothing would never get on.
            Fate::Send if chosen.send.len() >= most.max(1) => {
                chosen.is_end = false;
                return chosen;
            }
            Fate::Send => {
                chosen.examined += 1;
                chosen.send.push(*key);
            }
        }
        chosen.reached = Some(*key);
    }
    chosen
}
