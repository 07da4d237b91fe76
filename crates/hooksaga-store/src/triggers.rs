//! The triggers that the migrations create, and the rows that they maintain. A restore may leave triggers out. Then lists lack
//! rows and the schema guards less, and nothing else would show it.

/// A trigger that a script makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trigger<'a> {
    pub name: &'a str,
    pub table: &'a str,
}

/// The triggers that a script makes, in its order.
pub fn triggers(script: &str) -> impl Iterator<Item = Trigger<'_>> {
    script.split("\nCREATE TRIGGER ").skip(1).filter_map(|statement| {
        let (_, table) = statement.split_once(" ON ")?;
        Some(Trigger { name: statement.split_whitespace().next()?, table: table.split_whitespace().next()? })
    })
}

/// A line for `hooksaga doctor` if triggers of a script are missing: what it is, and what is to be done.
pub fn missing_triggers(
    script: &str,
    is_there: impl Fn(&Trigger<'_>) -> bool,
    advice: &str,
) -> Option<String> {
    const SHOWN: usize = 5;
    let missing: Vec<_> = triggers(script).filter(|trigger| !is_there(trigger)).collect();
    let named: Vec<_> =
        missing.iter().take(SHOWN).map(|Trigger { name, table }| format!("{name} on {table}")).collect();
    let more = if missing.len() > SHOWN { ", …" } else { "" };
    (!missing.is_empty()).then(|| {
        format!(
            "the schema lacks {} of its triggers ({}{more}), without which lists are incomplete and history unprotected; {advice}",
            missing.len(),
            named.join(", ")
        )
    })
}

/// Makes the heads of letters what their triggers would have made them: in this order, beside nobody who writes without these
/// triggers.
pub const REPAIR_LETTER_HEADS: [&str; 3] = [
    "INSERT INTO letter_heads
        (letter_id, saga_id, subscription_id, tenant, event_type, final_error_code, created_at, saga_created_at, requeued)
     SELECT d.id, d.saga_id, d.subscription_id, e.tenant, e.event_type, d.final_error_code, d.created_at, s.created_at, FALSE
     FROM dead_letters d JOIN events e ON e.id = d.event_id JOIN webhook_delivery_sagas s ON s.id = d.saga_id
     LEFT JOIN letter_heads h ON h.letter_id = d.id
     WHERE h.letter_id IS NULL",
    "UPDATE letter_heads SET requeued = TRUE
     WHERE NOT requeued AND EXISTS (
         SELECT 1 FROM webhook_delivery_sagas s
         JOIN webhook_delivery_sagas n
           ON n.event_id = s.event_id AND n.subscription_id = s.subscription_id AND n.generation = s.generation + 1
         WHERE s.id = letter_heads.saga_id)",
    "DELETE FROM letter_heads WHERE NOT EXISTS (SELECT 1 FROM dead_letters d WHERE d.id = letter_heads.letter_id)",
];

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "-- CREATE TRIGGER in a comment ON t\n\nCREATE TRIGGER a BEFORE UPDATE OF x, y ON t\nBEGIN END;\n\n\
        CREATE TRIGGER b\n    AFTER INSERT ON u\n    FOR EACH ROW f();\n";

    #[test]
    fn a_script_names_its_triggers() {
        let found: Vec<_> = triggers(SCRIPT).map(|trigger| (trigger.name, trigger.table)).collect();
        assert_eq!(found, [("a", "t"), ("b", "u")]);
    }

    #[test]
    fn what_is_missing_is_named() {
        assert_eq!(missing_triggers(SCRIPT, |_| true, "do it"), None);
        let line = missing_triggers(SCRIPT, |trigger| trigger.name == "a", "do it").unwrap();
        assert!(
            line.starts_with("the schema lacks 1 of its triggers (b on u), ") && line.ends_with("; do it"),
            "{line}"
        );
        let many: String = (0..6).map(|n| format!("\nCREATE TRIGGER t{n} AFTER DELETE ON x\n")).collect();
        let line = missing_triggers(&many, |_| false, "do it").unwrap();
        assert!(line.contains("lacks 6 of") && line.contains("t4 on x, …)"), "{line}");
    }
}
