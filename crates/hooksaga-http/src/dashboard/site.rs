//! The two sites: the operators' dashboard, and the portal for one tenant's customers.

/// Which of the two a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Site {
    Dashboard,
    Portal,
}

impl Site {
    /// The site that a path belongs to.
    pub(super) fn of(path: &str) -> Self {
        match path.strip_prefix("/portal") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Portal,
            _ => Self::Dashboard,
        }
    }

    /// Its first page.
    pub(super) const fn home(self) -> &'static str {
        match self {
            Self::Dashboard => "/",
            Self::Portal => "/portal",
        }
    }

    /// One of its pages; `path` begins with a slash.
    pub(super) fn path(self, path: &str) -> String {
        match self {
            Self::Dashboard => path.to_owned(),
            Self::Portal => format!("/portal{path}"),
        }
    }

    /// A page of this site that somebody asked for, and nothing else: what could lead away, or nowhere, becomes the first
    /// page.
    pub(super) fn local(self, next: &str) -> &str {
        let plain = next.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        let rooted = next.starts_with('/') && !next.starts_with("//");
        let path = next.split(['?', '#']).next().unwrap_or_default();
        let signs = [self.path("/sign-in"), self.path("/sign-out")];
        if plain && rooted && Self::of(path) == self && !signs.iter().any(|sign| sign == path) {
            next
        } else {
            self.home()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_paths_of_the_same_site_are_local() {
        for (next, expected) in [
            ("/deliveries/5?x=1", "/deliveries/5?x=1"),
            ("/", "/"),
            ("", "/"),
            ("//evil.example", "/"),
            ("/\\evil.example", "/"),
            ("https://evil.example/", "/"),
            ("javascript:alert(1)", "/"),
            ("/a b", "/"),
            ("/portal/events", "/"),
            ("/portalx", "/portalx"),
            ("/sign-out", "/"),
            ("/sign-in?next=/", "/"),
            ("/a\r\nset-cookie:x", "/"),
        ] {
            assert_eq!(Site::Dashboard.local(next), expected, "{next}");
        }
        assert_eq!(Site::Portal.local("/portal/events?a=b"), "/portal/events?a=b");
        assert_eq!(Site::Portal.local("/portal"), "/portal");
        assert_eq!(Site::Portal.local("/events"), "/portal");
    }
}
