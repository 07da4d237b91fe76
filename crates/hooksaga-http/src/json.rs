//! Reads JSON bodies field by field, without a schema in between: every fault is reported, payloads are
//! borrowed as the bytes that came, and no input can overflow the stack or blow up memory.
//!
//! serde_json skips a raw value with a loop, not by recursion, so depth is only a matter of [`depth`].

use crate::{
    errors::FieldErrors,
    problem::{Kind, Problem},
};
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt, ops::RangeInclusive};

/// An object with more members than this is refused; no request has nearly as many.
const MAX_MEMBERS: usize = 64;

/// What `null` means for a member that may be absent.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Null {
    IsAbsent,
    IsAValue,
}

/// An object of a request, from which members are taken one by one.
#[derive(Debug)]
pub(crate) struct Object<'a> {
    /// Put before every name in error messages, such as `events[3].`.
    prefix: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    too_many: bool,
}

impl<'a> Object<'a> {
    /// The object that a body must be. Not JSON: 400; JSON, but no object: 422.
    pub(crate) fn from_body(body: &'a [u8]) -> Result<Self, Problem> {
        let text = std::str::from_utf8(body)
            .map_err(|error| Problem::new(Kind::NotJson, format!("the body is not UTF-8: {error}")))?;
        let not_json =
            |error: serde_json::Error| Problem::new(Kind::NotJson, format!("the body is not JSON: {error}"));
        if !text.trim_ascii_start().starts_with('{') {
            serde_json::from_str::<IgnoredAny>(text).map_err(not_json)?;
            return Err(Problem::with_field(Kind::Invalid, "body", "must be a JSON object"));
        }
        let Members { members, too_many } = serde_json::from_str(text).map_err(not_json)?;
        Ok(Self { prefix: String::new(), members, too_many })
    }

    /// An object inside a body. `name` is what error messages call it.
    pub(crate) fn from_value(value: &'a RawValue, name: &str) -> Result<Self, String> {
        let Members { members, too_many } =
            serde_json::from_str(value.get()).map_err(|_| "must be an object".to_owned())?;
        Ok(Self { prefix: format!("{name}."), members, too_many })
    }

    /// Every member, for an object whose names are the client's; none is unknown.
    pub(crate) fn into_members(self) -> Result<Vec<(Cow<'a, str>, &'a RawValue)>, String> {
        if self.too_many { Err(format!("has more than {MAX_MEMBERS} members")) } else { Ok(self.members) }
    }

    /// The full name of a member, for error messages.
    pub(crate) fn name_of(&self, member: &str) -> String {
        format!("{}{member}", self.prefix)
    }

    /// Takes a member out; one that is given twice is an error.
    fn take(&mut self, name: &str, errors: &mut FieldErrors) -> Option<&'a RawValue> {
        let at = self.members.iter().position(|(member, _)| member == name)?;
        let (_, value) = self.members.remove(at);
        let before = self.members.len();
        self.members.retain(|(member, _)| member != name);
        if self.members.len() < before {
            errors.add(&self.name_of(name), "is given more than once");
        }
        Some(value)
    }

    /// A member that must be there.
    pub(crate) fn required<T>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
        read: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        match self.take(name, errors) {
            Some(value) => errors.note(&self.name_of(name), read(value)),
            None => {
                errors.add(&self.name_of(name), "is required");
                None
            }
        }
    }

    /// A member that may be absent; `null` counts as absent.
    pub(crate) fn optional<T>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
        read: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.take(name, errors).filter(|value| !is_null(value))?;
        errors.note(&self.name_of(name), read(value))
    }

    /// A member that may be absent; `null` is a value like any other.
    pub(crate) fn given<T>(
        &mut self,
        name: &str,
        errors: &mut FieldErrors,
        read: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        let value = self.take(name, errors)?;
        errors.note(&self.name_of(name), read(value))
    }

    /// A member that may be absent; what its `null` is depends on the request.
    pub(crate) fn member<T>(
        &mut self,
        name: &str,
        null: Null,
        errors: &mut FieldErrors,
        read: impl FnOnce(&'a RawValue) -> Result<T, String>,
    ) -> Option<T> {
        match null {
            Null::IsAbsent => self.optional(name, errors, read),
            Null::IsAValue => self.given(name, errors, read),
        }
    }

    /// A member that clients may not set, with what to do instead.
    pub(crate) fn refuse(&mut self, name: &str, errors: &mut FieldErrors, why: &str) {
        if self.take(name, errors).is_some() {
            errors.add(&self.name_of(name), why);
        }
    }

    /// Whatever was not taken is unknown.
    pub(crate) fn finish(self, errors: &mut FieldErrors) {
        for (name, _) in &self.members {
            errors.add(&self.name_of(name), "is not a known field");
        }
        if self.too_many {
            errors.add(self.prefix.trim_end_matches('.'), format!("has more than {MAX_MEMBERS} members"));
        }
    }
}

/// The members of an object in order, repeated ones included.
struct Members<'a> {
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    too_many: bool,
}

impl<'de> Deserialize<'de> for Members<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MembersVisitor;

        impl<'de> Visitor<'de> for MembersVisitor {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut read = Members { members: Vec::with_capacity(4), too_many: false };
                while let Some((name, value)) = map.next_entry::<&RawValue, &RawValue>()? {
                    if read.members.len() < MAX_MEMBERS {
                        read.members.push((member_name(name.get()), value));
                    } else {
                        read.too_many = true;
                    }
                }
                Ok(read)
            }
        }

        deserializer.deserialize_map(MembersVisitor)
    }
}

/// A member's name; one that is no Unicode text (a lone surrogate) stays as written: it matches nothing.
fn member_name(raw: &str) -> Cow<'_, str> {
    match raw.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) {
        Some(plain) if !plain.contains('\\') => Cow::Borrowed(plain),
        _ => serde_json::from_str::<String>(raw).map_or(Cow::Borrowed(raw), Cow::Owned),
    }
}

/// The elements of an array, at most `max` of them; the count of all.
pub(crate) struct Elements<'a> {
    pub(crate) items: Vec<&'a RawValue>,
    pub(crate) count: usize,
}

pub(crate) fn elements(value: &RawValue, max: usize) -> Result<Elements<'_>, String> {
    struct ElementsVisitor(usize);

    impl<'de> Visitor<'de> for ElementsVisitor {
        type Value = Elements<'de>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut read = Elements { items: Vec::new(), count: 0 };
            while read.count < self.0 {
                let Some(item) = seq.next_element::<&RawValue>()? else { return Ok(read) };
                read.items.push(item);
                read.count += 1;
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {
                read.count += 1;
            }
            Ok(read)
        }
    }

    let mut deserializer = serde_json::Deserializer::from_str(value.get());
    (&mut deserializer).deserialize_seq(ElementsVisitor(max)).map_err(|_| "must be an array".to_owned())
}

pub(crate) fn is_null(value: &RawValue) -> bool {
    value.get() == "null"
}

/// Reads `null` as nothing.
pub(crate) fn or_null<T>(
    value: &RawValue,
    read: impl FnOnce(&RawValue) -> Result<T, String>,
) -> Result<Option<T>, String> {
    if is_null(value) { Ok(None) } else { read(value).map(Some) }
}

pub(crate) fn string(value: &RawValue) -> Result<String, String> {
    if !value.get().starts_with('"') {
        return Err("must be a string".to_owned());
    }
    serde_json::from_str(value.get()).map_err(|_| "must be a string of Unicode characters".to_owned())
}

pub(crate) fn boolean(value: &RawValue) -> Result<bool, String> {
    match value.get() {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// An integer within the range. `40.0` and `4e1` are integers, too: JSON Schema says so, and some languages write them thus.
pub(crate) fn integer(value: &RawValue, range: RangeInclusive<i64>) -> Result<i64, String> {
    let text = value.get();
    let number = text.parse::<i64>().ok().or_else(|| whole(text.parse().ok()?));
    number
        .filter(|number| range.contains(number))
        .ok_or_else(|| format!("must be an integer from {} to {}", range.start(), range.end()))
}

/// The number without a fraction, as far as those are exact.
fn whole(number: f64) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    #[expect(clippy::cast_possible_truncation, reason = "it has no fraction and is within the range")]
    (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64)
}

/// How deep arrays and objects are nested in a valid JSON text; 0 for a plain value.
pub(crate) fn depth(json: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0_usize);
    let (mut in_string, mut escaped) = (false, false);
    for byte in json.bytes() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::{depth, integer};
    use serde_json::value::RawValue;

    #[test]
    fn integers_are_read_however_they_are_written_and_nothing_else_is() {
        let read = |text: &str| {
            let raw = RawValue::from_string(text.to_owned()).expect("JSON");
            integer(&raw, 1..=i64::MAX)
        };
        for (text, expected) in [
            ("1", 1),
            ("40.0", 40),
            ("4e1", 40),
            ("9223372036854775807", i64::MAX),
            ("9e15", 9_000_000_000_000_000),
        ] {
            assert_eq!(read(text), Ok(expected), "{text}");
        }
        for text in ["0", "-1", "1.5", "0.0", "1e30", "1e999", "9223372036854775808", "\"1\"", "null", "true"]
        {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn depth_counts_nesting_and_ignores_strings() {
        for (json, expected) in [
            ("null", 0),
            ("\"[[[\"", 0),
            ("[]", 1),
            ("[[],[]]", 2),
            (r#"{"a":[{"b":"]}\"["}]}"#, 3),
            (r#"{"a\\":[1]}"#, 2),
        ] {
            assert_eq!(depth(json), expected, "{json}");
        }
    }
}
