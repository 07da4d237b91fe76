//! OpenMetrics in Prometheus' older text format: counters are declared under the name that their samples have, and there are
//! neither units nor an end.

/// The same metrics in the older format.
pub(super) fn from_openmetrics(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut help: Option<&str> = None;
    for line in text.lines() {
        if let Some(declared) = line.strip_prefix("# HELP ") {
            // Its type comes next, and decides about the name.
            help = Some(declared);
        } else if let Some(declared) = line.strip_prefix("# TYPE ") {
            let (name, kind) = declared.split_once(' ').unwrap_or((declared, "untyped"));
            let suffix = if kind == "counter" { "_total" } else { "" };
            if let Some((_, help)) = help.take().and_then(|help| help.split_once(' ')) {
                plain.push_str(&format!("# HELP {name}{suffix} {help}\n"));
            }
            plain.push_str(&format!("# TYPE {name}{suffix} {kind}\n"));
        } else if !line.starts_with('#') {
            plain.push_str(line);
            plain.push('\n');
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_declared_by_their_full_name() {
        let open = "# HELP a_seconds Time.\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1\n\
                    # HELP b Some.\n# TYPE b gauge\nb{x=\"y\"} 2\n# EOF\n";
        let plain = "# HELP a_seconds_total Time.\n# TYPE a_seconds_total counter\na_seconds_total 1\n\
                     # HELP b Some.\n# TYPE b gauge\nb{x=\"y\"} 2\n";
        assert_eq!(from_openmetrics(open), plain);
    }
}
