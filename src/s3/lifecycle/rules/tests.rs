//! The corner cases of the User Guide, and random rules and versions beside a model that looks at everything.

use super::*;
use crate::s3::lifecycle::walk::Walk;
use crate::s3::xml::lifecycle::NoncurrentExpiration;
use crate::s3::xml::tagging::Tag as Wanted;
use crate::store::index::Version;
use proptest::prelude::*;

fn rule(expiration: Option<Expiration>) -> Rule {
    Rule {
        id: Some("r".into()),
        status: Status::Enabled,
        filter: Filter::default(),
        expiration,
        noncurrent_expiration: None,
        abort_uploads_days: None,
        transitions: Vec::new(),
        noncurrent_transitions: Vec::new(),
    }
}

fn rules(rules: impl IntoIterator<Item = Rule>) -> Rules {
    Rules::new(LifecycleConfiguration { rules: rules.into_iter().collect() })
}

fn ends_noncurrent(days: Option<u32>, newer_versions: Option<u32>) -> Rule {
    Rule { noncurrent_expiration: Some(NoncurrentExpiration { days, newer_versions }), ..rule(None) }
}

fn current(put_ms: u64) -> Seen<'static> {
    Seen { key: b"key", size: 10, put_ms, is_marker: false, standing: Standing::Current { is_alone: true } }
}

fn noncurrent(since_ms: u64, newer: u32) -> Seen<'static> {
    Seen { standing: Standing::Noncurrent { since_ms, newer }, ..current(0) }
}

fn marker(put_ms: u64, is_alone: bool) -> Seen<'static> {
    Seen { size: 0, is_marker: true, standing: Standing::Current { is_alone }, ..current(put_ms) }
}

/// 2014-01-15T10:30:00Z, of the example in "Lifecycle rules: based on an object's age".
const EXAMPLE: u64 = 1_389_781_800_000;
/// 2014-01-19T00:00:00Z.
const EXAMPLE_ENDS: u64 = 1_390_089_600_000;

#[test]
fn days_are_rounded_up_to_the_next_midnight() {
    assert_eq!(Days::Whole.after(EXAMPLE, 3), EXAMPLE_ENDS);
    let midnight = EXAMPLE_ENDS - 4 * DAY_MS;
    for then in [midnight, midnight + 1, midnight + DAY_MS - 1] {
        assert_eq!(Days::Whole.after(then, 3), EXAMPLE_ENDS, "{then}");
    }
    assert_eq!(Days::Whole.after(midnight - 1, 3), EXAMPLE_ENDS - DAY_MS);
    assert_eq!(Days::Short(5000).after(EXAMPLE, 3), EXAMPLE + 15_000);
    assert_eq!((Days::of_seconds(86_400), Days::of_seconds(5)), (Days::Whole, Days::Short(5000)));
    // The largest there can be.
    assert!(Days::Whole.after((1 << 48) - 1, i32::MAX as u32) > 1 << 57);
    assert_eq!(Days::Short(u64::MAX).after(1, 2), u64::MAX);
}

#[test]
fn an_object_expires_when_its_days_are_over_or_its_date_has_come() {
    let (days, date) = (Expiration::Days(3), Expiration::Date(EXAMPLE_ENDS));
    for (expiration, at) in [(days, EXAMPLE_ENDS), (date, EXAMPLE_ENDS), (Expiration::Date(0), 0)] {
        let rules = rules([rule(Some(expiration))]);
        let verdict = |now_ms| rules.decide(&current(EXAMPLE), None, Days::Whole, now_ms);
        assert_eq!(verdict(at), Verdict::Expire, "{expiration:?}");
        assert_eq!(at.checked_sub(1).map(verdict).unwrap_or(Verdict::Keep), Verdict::Keep, "{expiration:?}");
        assert_eq!(rules.expiration(&current(EXAMPLE), &[], Days::Whole), Some((at, "r")));
    }
    // What is noncurrent has had its turn.
    let rules = rules([rule(Some(Expiration::Date(0)))]);
    assert_eq!(rules.decide(&noncurrent(0, 9), None, Days::Whole, EXAMPLE), Verdict::Keep);
}

#[test]
fn of_several_rules_the_earliest_holds() {
    let named = |id: &str, days| Rule { id: Some(id.into()), ..rule(Some(Expiration::Days(days))) };
    let rules = rules([named("late", 9), named("early", 3), named("as early", 3)]);
    assert_eq!(rules.expiration(&current(EXAMPLE), &[], Days::Whole), Some((EXAMPLE_ENDS, "early")));
    assert_eq!(rules.decide(&current(EXAMPLE), None, Days::Whole, EXAMPLE_ENDS), Verdict::Expire);
}

#[test]
fn rules_that_are_not_in_force_end_nothing() {
    let rules = rules([Rule { status: Status::Disabled, ..rule(Some(Expiration::Date(0))) }]);
    assert_eq!(rules.decide(&current(0), None, Days::Whole, EXAMPLE), Verdict::Keep);
    assert_eq!((rules.expiration(&current(0), &[], Days::Whole), rules.version_prefixes()), (None, vec![]));
}

/// "Removing expired object delete markers": at once where it is asked for, with the objects' age where that is, and never one that
/// hides a version.
#[test]
fn delete_markers_that_hide_nothing_go() {
    for (expiration, put_ms, goes) in [
        (Expiration::DeleteMarker(true), EXAMPLE, true),
        (Expiration::DeleteMarker(false), 0, false),
        (Expiration::Days(3), EXAMPLE - 5 * DAY_MS, true),
        (Expiration::Days(3), EXAMPLE, false),
        (Expiration::Date(EXAMPLE), EXAMPLE, true),
        (Expiration::Date(EXAMPLE_ENDS), EXAMPLE, false),
    ] {
        let rules = rules([rule(Some(expiration))]);
        let verdict = |is_alone| rules.decide(&marker(put_ms, is_alone), None, Days::Whole, EXAMPLE);
        assert_eq!(verdict(true), if goes { Verdict::EndMarker } else { Verdict::Keep }, "{expiration:?} of {put_ms}");
        assert_eq!(verdict(false), Verdict::Keep, "{expiration:?} of one that hides a version");
    }
    let rules = rules([rule(Some(Expiration::DeleteMarker(true)))]);
    assert_eq!(rules.decide(&current(0), None, Days::Whole, EXAMPLE), Verdict::Keep);
    assert_eq!(rules.expiration(&current(0), &[], Days::Whole), None);
}

#[test]
fn noncurrent_versions_end_by_days_and_by_number() {
    for (days, newer_versions, since_ms, newer, ends) in [
        (Some(3), None, EXAMPLE, 0, true),
        (Some(4), None, EXAMPLE, 100, false),
        (Some(3), Some(2), EXAMPLE, 2, true),
        (Some(3), Some(2), EXAMPLE, 1, false),
        (Some(4), Some(2), EXAMPLE, 5, false),
        (None, Some(2), EXAMPLE_ENDS, 2, true),
        (None, Some(2), 0, 1, false),
    ] {
        let rules = rules([ends_noncurrent(days, newer_versions)]);
        let ended = if ends { Verdict::EndVersion } else { Verdict::Keep };
        let seen = noncurrent(since_ms, newer);
        assert_eq!(rules.decide(&seen, None, Days::Whole, EXAMPLE_ENDS), ended, "{days:?} {newer_versions:?} {seen:?}");
        // Delete markers among them are noncurrent versions too.
        let ended = if ends { Verdict::EndMarker } else { Verdict::Keep };
        assert_eq!(rules.decide(&Seen { is_marker: true, ..seen }, None, Days::Whole, EXAMPLE_ENDS), ended);
        assert_eq!(rules.decide(&current(0), None, Days::Whole, EXAMPLE_ENDS), Verdict::Keep);
    }
}

#[test]
fn filters_are_by_prefix_tags_and_size() {
    let tagged = |names: &[&str]| names.iter().map(|name| Wanted { key: (*name).into(), value: "1".into() }).collect::<Vec<_>>();
    let filters = [
        Filter { prefix: Some("ke".into()), ..Filter::default() },
        Filter { prefix: Some("keys".into()), ..Filter::default() },
        Filter { size_greater_than: Some(9), size_less_than: Some(11), ..Filter::default() },
        Filter { size_greater_than: Some(10), ..Filter::default() },
        Filter { size_less_than: Some(10), ..Filter::default() },
        Filter { tags: tagged(&["a"]), ..Filter::default() },
        Filter { tags: tagged(&["a", "b"]), ..Filter::default() },
        Filter { tags: tagged(&["a", "c"]), ..Filter::default() },
        Filter { prefix: Some("other".into()), tags: tagged(&["a"]), ..Filter::default() },
    ];
    let tags: Vec<Tag> = ["a", "b"].map(|name| (name.into(), "1".into())).into();
    use Verdict::{Expire, Keep, ReadTags};
    let expected = [Expire, Keep, Expire, Keep, Keep, Expire, Expire, Keep, Keep];
    let untagged = [Expire, Keep, Expire, Keep, Keep, ReadTags, ReadTags, ReadTags, Keep];
    for (at, filter) in filters.into_iter().enumerate() {
        let has_tags_or_sizes = !filter.tags.is_empty() || filter.size_greater_than.is_some() || filter.size_less_than.is_some();
        let is_of_key = filter.prefix.as_ref().is_none_or(|prefix| "key".starts_with(prefix.as_str()));
        let rules = rules([Rule { filter: filter.clone(), ..rule(Some(Expiration::Days(1))) }]);
        let verdict = |tags| rules.decide(&current(0), tags, Days::Whole, EXAMPLE);
        assert_eq!((verdict(Some(&tags)), verdict(None)), (expected[at], untagged[at]), "{filter:?}");
        assert_eq!(rules.expiration(&current(0), &tags, Days::Whole).is_some(), expected[at] == Expire, "{filter:?}");
        let same_name = [("a".into(), "2".into()), ("b".into(), "1".into())];
        assert_eq!(verdict(Some(&same_name)) == Expire, expected[at] == Expire && !has_tags(&filter), "{filter:?}");
        let goes = is_of_key && !has_tags_or_sizes;
        assert_eq!(rules.decide(&marker(0, true), None, Days::Whole, EXAMPLE) != Keep, goes, "a delete marker and {filter:?}");
    }
}

fn has_tags(filter: &Filter) -> bool {
    !filter.tags.is_empty()
}

#[test]
fn tags_are_not_asked_for_where_they_do_not_matter() {
    let tags = vec![Wanted { key: "a".into(), value: "b".into() }];
    let by_tag = Rule { filter: Filter { tags, ..Filter::default() }, ..rule(Some(Expiration::Days(3))) };
    let later = rules([by_tag.clone()]);
    assert_eq!(later.decide(&current(EXAMPLE), None, Days::Whole, EXAMPLE_ENDS - 1), Verdict::Keep);
    assert_eq!(later.decide(&current(EXAMPLE), None, Days::Whole, EXAMPLE_ENDS), Verdict::ReadTags);
    let anyway = rules([by_tag, rule(Some(Expiration::Days(2)))]);
    assert_eq!(anyway.decide(&current(EXAMPLE), None, Days::Whole, EXAMPLE_ENDS), Verdict::Expire);
}

#[test]
fn uploads_are_aborted_by_the_earliest_rule_of_their_name() {
    let aborts = |id: &str, prefix: &str, days| Rule {
        id: Some(id.into()),
        filter: Filter { prefix: Some(prefix.into()), ..Filter::default() },
        abort_uploads_days: Some(days),
        ..rule(None)
    };
    let rules = rules([aborts("all", "", 7), aborts("logs", "logs/", 3), aborts("other", "other", 1)]);
    assert_eq!(rules.abort(b"logs/1", EXAMPLE, Days::Whole), Some((EXAMPLE_ENDS, "logs")));
    assert_eq!(rules.abort(b"key", EXAMPLE, Days::Whole), Some((EXAMPLE_ENDS + 4 * DAY_MS, "all")));
    assert_eq!(rules.decide(&current(0), None, Days::Whole, u64::MAX), Verdict::Keep);
    assert_eq!((rules.upload_prefixes(), rules.version_prefixes()), (vec![""], vec![]));
}

#[test]
fn names_are_gone_through_once() {
    let of = |prefix: &str| Rule { filter: Filter { prefix: Some(prefix.into()), ..Filter::default() }, ..rule(Some(Expiration::Days(1))) };
    assert_eq!(rules(["b/c", "a", "b", "a", "b/c/d", "c/"].map(of)).version_prefixes(), ["a", "b", "c/"]);
    assert_eq!(rules(["b", ""].map(of)).version_prefixes(), [""]);
}

/// A version of a history: the newest of a name first.
#[derive(Clone, Debug)]
struct Had {
    put_ms: u64,
    is_marker: bool,
    size: u64,
    tags: Vec<Tag>,
}

/// The midnight behind so many days from then, by counting.
fn counted(then_ms: u64, days: u32) -> u64 {
    let mut day = then_ms;
    for _ in 0..days {
        day += DAY_MS;
    }
    let mut midnight = 0;
    while midnight <= day {
        midnight += DAY_MS;
    }
    midnight
}

/// Whether version `at` of a history ends by one rule, by looking at the whole history.
fn ends_by(rule: &Rule, all: &[Rule], key: &str, history: &[Had], at: usize, now_ms: u64) -> bool {
    let had = &history[at];
    if rule.status != Status::Enabled || !key.starts_with(rule.filter.prefix.as_deref().unwrap_or("")) {
        return false;
    }
    let by_size = rule.filter.size_greater_than.is_some() || rule.filter.size_less_than.is_some();
    if had.is_marker && (by_size || !rule.filter.tags.is_empty()) {
        return false;
    }
    if rule.filter.size_greater_than.is_some_and(|size| had.size <= size) {
        return false;
    }
    if rule.filter.size_less_than.is_some_and(|size| had.size >= size) {
        return false;
    }
    for wanted in &rule.filter.tags {
        if !had.tags.contains(&(wanted.key.as_str().into(), wanted.value.as_str().into())) {
            return false;
        }
    }
    if at > 0 {
        let Some(NoncurrentExpiration { days, newer_versions }) = rule.noncurrent_expiration else { return false };
        let left = (1..at).filter(|&newer| !ends(all, key, history, newer, now_ms)).count();
        return days.is_none_or(|days| counted(history[at - 1].put_ms, days) <= now_ms)
            && newer_versions.is_none_or(|kept| left >= kept as usize);
    }
    let is_old = match rule.expiration {
        Some(Expiration::Days(days)) => counted(had.put_ms, days) <= now_ms,
        Some(Expiration::Date(date)) => date <= now_ms,
        _ => false,
    };
    if had.is_marker { history.len() == 1 && (is_old || rule.expiration == Some(Expiration::DeleteMarker(true))) } else { is_old }
}

fn ends(all: &[Rule], key: &str, history: &[Had], at: usize, now_ms: u64) -> bool {
    all.iter().any(|rule| ends_by(rule, all, key, history, at, now_ms))
}

/// Six days by the hour, so that much falls together.
fn time() -> impl Strategy<Value = u64> {
    (0..6 * 24u64, -1..=1i64).prop_map(|(hour, off)| (hour * DAY_MS / 24).saturating_add_signed(off))
}

fn key() -> impl Strategy<Value = String> {
    "[ab]{0,3}"
}

fn tag() -> impl Strategy<Value = (String, String)> {
    ("[xy]", "[12]")
}

fn any_rule() -> impl Strategy<Value = Rule> {
    let filter = (prop::option::of(key()), prop::collection::vec(tag(), 0..2), prop::option::of(0..4u64), prop::option::of(0..4u64));
    let expiration = prop::option::of(prop_oneof![
        (1..4u32).prop_map(Expiration::Days),
        (0..6u64).prop_map(|day| Expiration::Date(day * DAY_MS)),
        any::<bool>().prop_map(Expiration::DeleteMarker),
    ]);
    let noncurrent = prop::option::of((prop::option::of(1..4u32), prop::option::of(1..4u32)));
    (filter, expiration, noncurrent, 0..8).prop_map(|((prefix, tags, greater, less), expiration, noncurrent, status)| Rule {
        status: if status == 0 { Status::Disabled } else { Status::Enabled },
        filter: Filter {
            is_first_version: false,
            prefix,
            tags: tags.into_iter().map(|(key, value)| Wanted { key, value }).collect(),
            size_greater_than: greater,
            size_less_than: less,
        },
        noncurrent_expiration: noncurrent.map(|(days, newer_versions)| NoncurrentExpiration { days, newer_versions }),
        ..rule(expiration)
    })
}

fn history() -> impl Strategy<Value = Vec<Had>> {
    let tags = prop::collection::btree_map("[xy]", "[12]", 0..3);
    let had = (time(), prop::bool::weighted(0.3), 0..4u64, tags).prop_map(|(put_ms, is_marker, size, tags)| Had {
        put_ms,
        is_marker,
        size: if is_marker { 0 } else { size },
        tags: if is_marker { Vec::new() } else { tags.into_iter().map(|(name, value)| (name.into(), value.into())).collect() },
    });
    prop::collection::vec(had, 1..7).prop_map(|mut all| {
        all.sort_by_key(|had| std::cmp::Reverse(had.put_ms));
        all
    })
}

fn version(had: &Had, sequence: u64) -> Version {
    Version {
        address: 0,
        item_bytes: 0,
        head_bytes: 0,
        sequence,
        time_ms: had.put_ms,
        size: had.size,
        etag: [0; 16],
        parts: 0,
        is_null: false,
        is_delete_marker: had.is_marker,
        has_extents: false,
        has_opaque_etag: false,
        listed: 0,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1000) })]

    /// A list of all versions, walked and judged line by line, beside the model.
    #[test]
    fn as_a_model_that_looks_at_everything(
        all in prop::collection::vec(any_rule(), 1..4),
        names in prop::collection::btree_map(key(), history(), 1..4),
        now_ms in time(),
    ) {
        let rules = rules(all.clone());
        let mut walk = Walk::default();
        let mut sequence = 1000;
        for (key, history) in &names {
            let newest = sequence - 1;
            for (at, had) in history.iter().enumerate() {
                sequence -= 1;
                let (standing, told_newest) = walk.step(key.as_bytes(), &version(had, sequence), at + 1 == history.len());
                prop_assert_eq!(told_newest, newest);
                let seen = Seen { key: key.as_bytes(), size: had.size, put_ms: had.put_ms, is_marker: had.is_marker, standing };
                let verdict = rules.decide(&seen, Some(&had.tags), Days::Whole, now_ms);
                let expected = match (ends(&all, key, history, at, now_ms), had.is_marker, at) {
                    (false, _, _) => Verdict::Keep,
                    (true, true, _) => Verdict::EndMarker,
                    (true, false, 0) => Verdict::Expire,
                    (true, false, _) => Verdict::EndVersion,
                };
                prop_assert_eq!(verdict, expected, "version {} of {:?}", at, key);
                // Without tags it is the same, or they are asked for.
                let untagged = rules.decide(&seen, None, Days::Whole, now_ms);
                prop_assert!(untagged == verdict || untagged == Verdict::ReadTags, "{:?} {:?}", untagged, verdict);
                let starts = |prefixes: Vec<&str>| prefixes.iter().any(|prefix| key.starts_with(prefix));
                prop_assert!(verdict == Verdict::Keep || starts(rules.version_prefixes()));
                if verdict == Verdict::Keep && at > 0 {
                    walk.keep();
                }
            }
        }
    }

    /// What answers tell is when the worker does it.
    #[test]
    fn an_object_goes_when_it_was_told_to(
        all in prop::collection::vec(any_rule(), 1..4), key in key(), history in history(), short in 0..20_000u64,
    ) {
        let had = &history[0];
        let rules = rules(all);
        let standing = Standing::Current { is_alone: history.len() == 1 };
        let seen = Seen { key: key.as_bytes(), size: had.size, put_ms: had.put_ms, is_marker: false, standing };
        let days = if short == 0 { Days::Whole } else { Days::Short(short) };
        let verdict = |now_ms| rules.decide(&seen, Some(&had.tags), days, now_ms);
        match rules.expiration(&seen, &had.tags, days) {
            Some((date, _)) => {
                prop_assert_eq!(verdict(date), Verdict::Expire);
                prop_assert!(date == 0 || verdict(date - 1) == Verdict::Keep);
            }
            None => prop_assert_eq!(verdict(u64::MAX), Verdict::Keep),
        }
    }
}
