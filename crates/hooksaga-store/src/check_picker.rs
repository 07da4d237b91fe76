//! Picks the checks that one pass takes. All back ends share it.
//!
//! A back end reads an index of the open rounds, ordered by tenant, due time and id, a few entries at a time. If all of these
//! are one tenant's, the next read jumps to the next tenant. So the cost grows with the number of tenants, not with the
//! number of checks that wait for one of them.

use crate::CheckTurn;
use hooksaga_saga::SubscriptionId;

/// An entry of the index: an open round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenCheck {
    pub tenant: String,
    pub subscription_id: SubscriptionId,
    pub due: bool,
}

/// One turn on its way through the index.
#[derive(Debug)]
pub struct CheckPicker<'a> {
    turn: &'a CheckTurn,
    /// Tenants up to this one are done with.
    after: String,
    picked: Vec<SubscriptionId>,
    stretches: usize,
    is_over: bool,
}

impl<'a> CheckPicker<'a> {
    /// The number of stretches after which a turn ends, even if nothing was due; the next turn continues there.
    const MOST_STRETCHES: usize = 16;
    /// Entries of a stretch, at least.
    const STRETCH: u32 = 128;

    pub fn new(turn: &'a CheckTurn) -> Self {
        let after = turn.after.clone().unwrap_or_default();
        Self { turn, after, picked: Vec::new(), stretches: 0, is_over: false }
    }

    /// The next stretch to read: how many entries, and the tenant after which they begin. `None` when the turn is over.
    pub fn next_stretch(&self) -> Option<(&str, u32)> {
        let ends = self.is_over || self.missing() == 0 || self.stretches == Self::MOST_STRETCHES;
        (!ends).then_some((&self.after, self.length()))
    }

    /// These entries were read.
    pub fn read(&mut self, stretch: &[OpenCheck]) {
        self.stretches += 1;
        let is_whole = stretch.len() >= self.length() as usize;
        let mut tenants = stretch.chunk_by(|a, b| a.tenant == b.tenant).peekable();
        let mut is_first = true;
        while let Some(entries) = tenants.next() {
            let is_cut_off = is_whole && tenants.peek().is_none();
            // The next stretch begins with it. One that fills a stretch alone has shown as many as it may have taken.
            if is_cut_off && !is_first {
                return;
            }
            is_first = false;
            self.visit(entries);
            if self.missing() == 0 {
                return;
            }
        }
        self.is_over = !is_whole;
    }

    /// What was picked, and where the next turn begins.
    pub fn finish(self) -> (Vec<SubscriptionId>, Option<String>) {
        (self.picked, Some(self.after).filter(|_| !self.is_over))
    }

    /// The entries of one tenant, those that have been due for longest first.
    fn visit(&mut self, entries: &[OpenCheck]) {
        let Some(first) = entries.first() else { return };
        self.after.clone_from(&first.tenant);
        if self.turn.full.contains(&first.tenant) {
            return;
        }
        let most = self.missing().min(self.turn.per_tenant as usize);
        let due = entries.iter().take_while(|entry| entry.due).take(most);
        self.picked.extend(due.map(|entry| entry.subscription_id));
    }

    fn missing(&self) -> usize {
        (self.turn.limit as usize).saturating_sub(self.picked.len())
    }

    /// Long enough that a tenant which fills a stretch alone has shown all that may be taken of it.
    fn length(&self) -> u32 {
        self.turn.per_tenant.max(Self::STRETCH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Open rounds by tenant: how many are due, and how many are not.
    const TENANTS: [(&str, u32, u32); 5] =
        [("a", 10_000, 0), ("b", 3, 500), ("c", 0, 2), ("d", 20, 0), ("e", 1, 0)];

    fn index(tenants: &[(&str, u32, u32)]) -> Vec<OpenCheck> {
        let mut ids = 0..;
        let mut open = Vec::new();
        for (tenant, due, later) in tenants {
            for n in 0..due + later {
                let subscription_id = SubscriptionId(ids.next().unwrap());
                open.push(OpenCheck { tenant: (*tenant).to_owned(), subscription_id, due: n < *due });
            }
        }
        open
    }

    /// What a turn picks, by tenant; where the next one begins; and how many entries were read.
    fn pick(index: &[OpenCheck], turn: &CheckTurn) -> (Vec<(String, usize)>, Option<String>, usize) {
        let mut picker = CheckPicker::new(turn);
        let mut entries = 0;
        while let Some((after, length)) = picker.next_stretch() {
            let from = index.partition_point(|open| open.tenant.as_str() <= after);
            let stretch = &index[from..][..(index.len() - from).min(length as usize)];
            entries += stretch.len();
            picker.read(stretch);
        }
        let (picked, resume_after) = picker.finish();
        let tenant_of = |id: &SubscriptionId| index[usize::try_from(id.0).unwrap()].tenant.clone();
        let tenants: Vec<String> = picked.iter().map(tenant_of).collect();
        let counts = tenants.chunk_by(|a, b| a == b).map(|some| (some[0].clone(), some.len())).collect();
        (counts, resume_after, entries)
    }

    fn turn(limit: u32, per_tenant: u32) -> CheckTurn {
        CheckTurn { limit, per_tenant, ..CheckTurn::default() }
    }

    fn counts(of: &[(&str, usize)]) -> Vec<(String, usize)> {
        of.iter().map(|(tenant, count)| ((*tenant).to_owned(), *count)).collect()
    }

    #[test]
    fn tenants_take_turns_and_little_is_read_however_much_waits() {
        let index = index(&TENANTS);
        let (picked, resume_after, read) = pick(&index, &turn(64, 16));
        assert_eq!(picked, counts(&[("a", 16), ("b", 3), ("d", 16), ("e", 1)]));
        assert_eq!(resume_after, None);
        assert!(read <= 3 * 128, "{read}");
    }

    #[test]
    fn a_turn_goes_on_behind_the_last_tenant() {
        let index = index(&TENANTS);
        let (picked, resume_after, _) = pick(&index, &turn(18, 16));
        assert_eq!((picked, resume_after.as_deref()), (counts(&[("a", 16), ("b", 2)]), Some("b")));
        let next = CheckTurn { after: resume_after, ..turn(17, 16) };
        let (picked, resume_after, _) = pick(&index, &next);
        assert_eq!((picked, resume_after.as_deref()), (counts(&[("d", 16), ("e", 1)]), Some("e")));
        let last = CheckTurn { after: resume_after, ..turn(17, 16) };
        assert_eq!(pick(&index, &last), (Vec::new(), None, 0));
    }

    #[test]
    fn who_is_full_is_passed_over() {
        let index = index(&TENANTS);
        let turn = CheckTurn { full: vec!["a".to_owned(), "d".to_owned()], ..turn(64, 16) };
        assert_eq!(pick(&index, &turn).0, counts(&[("b", 3), ("e", 1)]));
    }

    #[test]
    fn all_of_one_tenant_may_be_taken_where_it_may_have_all() {
        let index = index(&[("a", 300, 1), ("b", 300, 0)]);
        assert_eq!(pick(&index, &turn(1000, 1000)).0, counts(&[("a", 300), ("b", 300)]));
        assert_eq!(pick(&index, &turn(301, 301)).0, counts(&[("a", 300), ("b", 1)]));
    }

    #[test]
    fn a_turn_ends_after_some_stretches_and_goes_on_from_there() {
        let names: Vec<String> = (0..40).map(|n| format!("t{n:02}")).collect();
        let mut tenants: Vec<(&str, u32, u32)> = names.iter().map(|name| (name.as_str(), 0, 200)).collect();
        tenants.push(("z", 1, 0));
        let index = index(&tenants);
        let (mut after, mut turns, mut found) = (None, 0, Vec::new());
        while found.is_empty() {
            let (picked, resume_after, read) = pick(&index, &CheckTurn { after, ..turn(64, 16) });
            assert!(read <= CheckPicker::MOST_STRETCHES * 128);
            (after, found) = (resume_after, picked);
            turns += 1;
        }
        assert_eq!((turns, found), (3, counts(&[("z", 1)])));
    }
}
