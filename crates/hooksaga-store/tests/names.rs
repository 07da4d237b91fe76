//! Roles, scopes and stages by name.

use hooksaga_store::{NoWakeups, Role, Scope, Scopes, Stage, UnknownRole, Wakeups as _};

#[test]
fn every_role_is_found_by_its_name() {
    for role in Role::ALL {
        assert_eq!(role.as_str().parse(), Ok(*role));
        assert_eq!(role.to_string(), role.as_str());
    }
    assert_eq!(Role::ALL.len(), 15);
}

#[test]
fn an_unknown_role_is_named_in_the_error() {
    let error = "Router_worker".parse::<Role>().unwrap_err();
    assert_eq!(error, UnknownRole("Router_worker".to_owned()));
    assert!(error.to_string().contains("Router_worker"));
}

#[test]
fn every_set_of_scopes_survives_as_text() {
    for bits in 1..16_u8 {
        let chosen = Scope::ALL.iter().copied().enumerate().filter(|(i, _)| bits & (1 << i) != 0);
        let scopes: Scopes = chosen.map(|(_, scope)| scope).collect();
        assert_eq!(scopes.to_string().parse(), Ok(scopes), "{scopes}");
        for (i, scope) in Scope::ALL.iter().enumerate() {
            assert_eq!(scopes.contains(*scope), bits & (1 << i) != 0, "{scopes} and {scope}");
        }
        assert_eq!(scopes.iter().count(), usize::try_from(bits.count_ones()).unwrap());
        assert!(!scopes.is_empty());
    }
    assert_eq!(Scopes::all().to_string(), "ingest,admin,operator,read");
}

#[test]
fn the_order_and_repeats_of_scopes_do_not_matter() {
    let scopes: Scopes = " read, ingest,read".parse().unwrap();
    assert_eq!(scopes, Scopes::from_iter([Scope::Ingest, Scope::Read]));
    assert_eq!(scopes.to_string(), "ingest,read");
}

#[test]
fn no_scope_implies_another() {
    for scope in Scope::ALL {
        let alone = Scopes::from_iter([*scope]);
        assert_eq!(alone.iter().collect::<Vec<_>>(), [*scope]);
    }
    assert!(Scopes::default().is_empty());
    assert!(!Scopes::default().contains(Scope::Ingest));
}

#[test]
fn an_unknown_scope_is_refused_with_the_known_ones() {
    for text in ["", "root", "Read", "ingest,", "ingest;read"] {
        let error = text.parse::<Scopes>().unwrap_err();
        assert!(error.contains("ingest, admin, operator and read"), "{text:?}: {error}");
    }
}

#[test]
fn stages_have_names_of_their_own() {
    let names: std::collections::HashSet<_> = Stage::ALL.iter().map(|stage| stage.as_str()).collect();
    assert_eq!(names.len(), 9);
    assert_eq!(Stage::DeadLetters.to_string(), "dead_letters");
}

#[tokio::test]
async fn a_back_end_without_signals_tells_nobody_and_hears_nothing() {
    NoWakeups.notify(Stage::ALL).await.unwrap();
    assert!(NoWakeups.listen().await.unwrap().is_none());
}
