//! JSON with line breaks and indentation, every token unchanged: numbers keep their digits, members their order.

/// The text, laid out; `None` if it would become longer than `most` bytes.
pub(super) fn pretty(json: &str, most: usize) -> Option<String> {
    let mut out = String::with_capacity(json.len() * 2);
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    let mut characters = json.chars().peekable();
    while let Some(character) = characters.next() {
        if out.len() > most {
            return None;
        }
        if in_string {
            out.push(character);
            in_string = escaped || character != '"';
            escaped = character == '\\' && !escaped;
            continue;
        }
        match character {
            ' ' | '\t' | '\n' | '\r' => {}
            '"' => {
                in_string = true;
                out.push('"');
            }
            '{' | '[' => {
                while characters.next_if(|next| next.is_ascii_whitespace()).is_some() {}
                out.push(character);
                if let Some(end) = characters.next_if(|next| matches!(next, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(character);
            }
            ',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            other => out.push(other),
        }
    }
    Some(out)
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_stay_and_lines_are_indented() {
        let text = r#"{"b":1.10e+2,"a":[ ],"c":{},"d":["x,{\"}",{"e":null}]}"#;
        let expected = "{\n  \"b\": 1.10e+2,\n  \"a\": [],\n  \"c\": {},\n  \"d\": [\n    \"x,{\\\"}\",\n    {\n      \"e\": null\n    }\n  ]\n}";
        assert_eq!(pretty(text, 1000).as_deref(), Some(expected));
        assert_eq!(pretty("\"a\\\\\"", 100).as_deref(), Some("\"a\\\\\""));
        assert_eq!(pretty(" 12 ", 100).as_deref(), Some("12"));
    }

    #[test]
    fn what_would_grow_too_large_is_left() {
        let deep = format!("{}{}{}", "[".repeat(100), vec!["1"; 5000].join(","), "]".repeat(100));
        assert_eq!(pretty(&deep, 100_000), None);
    }
}
