//! Policies of buckets and of users: the policy language of IAM, as far as S3 has it (bucket-policies.html; IAM user guide,
//! reference_policies_grammar.html).
//!
//! A document is read once, into statements that are evaluated without allocating: actions are a set of bits, texts with wildcards and
//! variables are cut into pieces, values of conditions are numbers, times and networks. The document is kept by whoever gives it back.

use super::action::{Action, ActionSet};
use super::condition::{BadCondition, Condition};
use super::json::{Json, normalized_bytes};
use super::key::{Context, Requester, Scope, Work};
use super::pattern::{Pattern, Subject, Syntax};
use super::principal::{Naming, Principals};
use super::resource::{About, Resource};
use crate::s3::error::{Code, S3Error};

/// The longest document without the white space between its tokens (bucket-policies.html: 20 KB).
pub const POLICY_MAX: usize = 20 * 1024;
/// The longest document as it is sent: what a bucket's properties have room for beside the other documents. Ours.
pub const DOCUMENT_MAX: usize = 32 * 1024;
/// What the wildcards of all actions of a document that is put may take to be compared: some milliseconds. Ours.
const ACTIONS_WORK_MAX: u32 = 1 << 20;

/// A policy.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    statements: Box<[Statement]>,
    is_public: bool,
    reads_existing_tags: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Statement {
    is_allow: bool,
    /// Everyone it is said to; a user's policy speaks of that user.
    principals: Option<Principals>,
    actions: ActionSet,
    resources: Box<[Resource]>,
    /// `NotResource`.
    is_of_others: bool,
    conditions: Box<[Condition]>,
}

/// What a policy says of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Verdict {
    pub is_denied: bool,
    /// How the statement that allows it names the requester.
    pub allowed: Option<Naming>,
}

/// To what a policy is attached.
#[derive(Clone, Copy)]
enum To<'a> {
    Bucket(&'a str),
    User,
}

impl Policy {
    /// The policy of a bucket.
    ///
    /// # Errors
    /// `MalformedPolicy` with what is wrong, in S3's words.
    pub fn for_bucket(document: &[u8], bucket: &str) -> Result<Policy, S3Error> {
        Policy::parse(document, To::Bucket(bucket), None)
    }

    /// A policy that is put on a bucket. Those that are kept already may say what this refuses, and hold.
    ///
    /// # Errors
    /// As of [`Policy::for_bucket`].
    pub fn to_keep(document: &[u8], bucket: &str) -> Result<Policy, S3Error> {
        let work = Work::of(ACTIONS_WORK_MAX);
        let policy = Policy::parse(document, To::Bucket(bucket), Some(&work))?;
        // All actions are `*`; of what begins so S3 takes no other.
        let is_vague = |name: &str| name.len() > 1 && name.starts_with('*');
        if actions_named(document).iter().any(|name| is_vague(name)) { malformed("Policy has invalid action") } else { Ok(policy) }
    }

    /// A policy that is attached to a user.
    ///
    /// # Errors
    /// `MalformedPolicy` with what is wrong.
    pub fn for_user(document: &[u8]) -> Result<Policy, S3Error> {
        Policy::parse(document, To::User, None)
    }

    fn parse(document: &[u8], to: To<'_>, work: Option<&Work>) -> Result<Policy, S3Error> {
        if document.first() != Some(&b'{') {
            return malformed("Policies must be valid JSON and the first byte must be '{'");
        }
        if document.len() > DOCUMENT_MAX || normalized_bytes(document) > POLICY_MAX {
            return malformed(format!("Normalized policy document exceeds the maximum allowed size of {POLICY_MAX} bytes"));
        }
        let Ok(Json::Object(members)) = serde_json::from_slice(document) else { return malformed("This policy contains invalid Json") };
        let (mut variables, mut statements) = (false, None);
        for (name, value) in &members {
            match (name.as_str(), value) {
                ("Version", Json::Text(version)) if version == "2008-10-17" => {}
                ("Version", Json::Text(version)) if version == "2012-10-17" => variables = true,
                ("Version", _) => return malformed("The policy must contain a valid version string"),
                ("Id", Json::Text(_)) => {}
                ("Statement", value) => statements = Some(value.items()),
                ("Id", _) => return malformed("Invalid policy syntax."),
                _ => return malformed(format!("Unknown field {name}")),
            }
        }
        let Some(statements) = statements else { return malformed("Missing required field Statement") };
        if statements.is_empty() {
            return malformed("Could not parse the policy: Statement is empty!");
        }
        let mut names: Vec<&str> = statements.iter().filter_map(sid).collect();
        names.sort_unstable();
        if names.windows(2).any(|pair| pair[0] == pair[1]) {
            return malformed("Statement IDs (SID) in a single policy must be unique.");
        }
        let statements: Box<[Statement]> =
            statements.iter().map(|statement| Statement::parse(statement, to, variables, work)).collect::<Result<_, _>>()?;
        Ok(Policy {
            is_public: statements.iter().any(Statement::is_public),
            reads_existing_tags: statements.iter().flat_map(|statement| &statement.conditions).any(Condition::reads_existing_tags),
            statements,
        })
    }

    /// Whether it gives something to the public (access-control-block-public-access.html, "The meaning of public"): whether a statement
    /// allows something to everyone, under no condition that has fixed values for who they are or where they are.
    pub fn is_public(&self) -> bool {
        self.is_public
    }

    /// Whether it asks for the tags that an object has.
    pub fn reads_existing_tags(&self) -> bool {
        self.reads_existing_tags
    }

    pub(super) fn verdict(&self, action: Action, about: About<'_>, scope: &Scope<'_>) -> Verdict {
        let mut verdict = Verdict::default();
        for statement in &self.statements {
            // What is known already is not asked again.
            if verdict.is_denied || statement.is_allow && verdict.allowed == Some(Naming::Directly) {
                continue;
            }
            if let Some(naming) = statement.says(action, about, scope) {
                match statement.is_allow {
                    true => verdict.allowed = verdict.allowed.max(Some(naming)),
                    false => verdict.is_denied = true,
                }
            }
        }
        verdict
    }
}

/// The patterns of actions that the statements of a document have.
fn actions_named(document: &[u8]) -> Vec<String> {
    let members = |json: Json| if let Json::Object(members) = json { members } else { Vec::new() };
    let document = serde_json::from_slice(document).map(members).unwrap_or_default();
    let statements = document.iter().filter(|(name, _)| name == "Statement").flat_map(|(_, value)| value.items());
    let of_statements = statements.cloned().flat_map(members);
    let actions = of_statements.filter(|(name, _)| matches!(name.as_str(), "Action" | "NotAction"));
    actions.flat_map(|(_, value)| value.items().iter().filter_map(Json::scalar).collect::<Vec<_>>()).collect()
}

/// What a statement is called; no name is like none.
fn sid(statement: &Json) -> Option<&str> {
    let Json::Object(members) = statement else { return None };
    members.iter().find_map(|(name, value)| match value {
        Json::Text(text) if name == "Sid" && !text.is_empty() => Some(&**text),
        _ => None,
    })
}

impl Statement {
    fn parse(json: &Json, to: To<'_>, variables: bool, work: Option<&Work>) -> Result<Statement, S3Error> {
        let Json::Object(members) = json else { return malformed("Invalid policy syntax.") };
        let is_known = |name: &str| {
            let of_buckets = matches!(to, To::Bucket(_)) && matches!(name, "Principal" | "NotPrincipal");
            of_buckets || matches!(name, "Sid" | "Effect" | "Action" | "NotAction" | "Resource" | "NotResource" | "Condition")
        };
        if let Some((name, _)) = members.iter().find(|(name, _)| !is_known(name)) {
            return malformed(format!("Unknown field {name}"));
        }
        let member = |wanted: &str| members.iter().find(|(name, _)| name == wanted).map(|(_, value)| value);
        let either = |one: &str, not: &str| match (member(one), member(not)) {
            (Some(value), None) => Ok((value, false)),
            (None, Some(value)) => Ok((value, true)),
            (None, None) => malformed(format!("Missing required field {one}")),
            (Some(_), Some(_)) => malformed("Invalid policy syntax."),
        };
        if !matches!(member("Sid"), None | Some(Json::Text(_))) {
            return malformed("Invalid policy syntax.");
        }
        let is_allow = match member("Effect") {
            Some(Json::Text(effect)) if effect == "Allow" => true,
            Some(Json::Text(effect)) if effect == "Deny" => false,
            Some(effect) => return malformed(format!("Invalid effect: {}", effect.scalar().unwrap_or_default())),
            None => return malformed("Missing required field Effect"),
        };
        let principals = match to {
            To::User => None,
            To::Bucket(_) => {
                let (value, is_negated) = either("Principal", "NotPrincipal")?;
                if is_negated && is_allow {
                    return malformed("Allow with NotPrincipal is not allowed.");
                }
                Some(Principals::parse(value, is_negated).or_else(|_| malformed("Invalid principal in policy"))?)
            }
        };
        let (value, is_negated) = either("Action", "NotAction")?;
        let names = texts(value, "Policy has invalid action")?;
        let sets: Vec<ActionSet> = names.iter().map(|name| actions(name, work)).collect();
        if work.is_some_and(Work::is_used_up) {
            return malformed("The wildcards of the policy's actions take too long to compare.");
        }
        if matches!(to, To::Bucket(_)) && sets.iter().any(|set| set.is_empty()) {
            return malformed("Policy has invalid action");
        }
        let all = sets.iter().fold(ActionSet::default(), |all, set| all.or(*set));
        let actions = if is_negated { all.others() } else { all };
        let (value, is_of_others) = either("Resource", "NotResource")?;
        let names = texts(value, "Policy has invalid resource")?;
        let resources: Box<[Resource]> = names
            .iter()
            .map(|name| Resource::parse(name, variables).or_else(|_| malformed("Policy has invalid resource")))
            .collect::<Result<_, _>>()?;
        if let To::Bucket(bucket) = to
            && !is_of_others
        {
            check_reach(&resources, bucket, if is_negated { &[] } else { &sets })?;
        }
        let conditions = member("Condition").map_or(Ok(Box::default()), |json| conditions(json, variables))?;
        Ok(Statement { is_allow, principals, actions, resources, is_of_others, conditions })
    }

    /// How it names the requester, if it says something of the request.
    fn says(&self, action: Action, about: About<'_>, scope: &Scope<'_>) -> Option<Naming> {
        if !self.actions.has(action) {
            return None;
        }
        let naming = match &self.principals {
            None => Naming::Directly,
            Some(principals) => principals.naming(scope.requester)?,
        };
        let is_meant = self.resources.iter().any(|resource| resource.matches(about, scope)) != self.is_of_others;
        (is_meant && self.conditions.iter().all(|condition| condition.holds(scope))).then_some(naming)
    }

    fn is_public(&self) -> bool {
        let is_to_everyone = self.principals.as_ref().is_some_and(Principals::is_everyone);
        self.is_allow && is_to_everyone && !self.conditions.iter().any(Condition::says_who)
    }
}

/// Whether all resources are of the bucket, and every action is done to one of them.
fn check_reach(resources: &[Resource], bucket: &str, sets: &[ActionSet]) -> Result<(), S3Error> {
    let reaches: Vec<_> = resources.iter().map(|resource| resource.reaches(bucket)).collect();
    if !reaches.iter().all(|reach| reach.is_anything()) {
        return malformed("Policy has invalid resource");
    }
    let applies = |set: &ActionSet| {
        let mut actions = Action::ALL.iter().filter(|action| set.has(**action));
        actions.any(|action| reaches.iter().any(|reach| reach.has(action.on())))
    };
    if sets.iter().all(applies) { Ok(()) } else { malformed("Action does not apply to any resource(s) in statement") }
}

/// The actions that a pattern of names means, by what may be compared for all patterns, or for this one.
fn actions(pattern: &str, work: Option<&Work>) -> ActionSet {
    if pattern == "*" {
        return ActionSet::of(Action::ALL.iter().copied());
    }
    if !pattern.contains(['*', '?']) {
        return ActionSet::of(Action::from_name(pattern));
    }
    let syntax = Syntax { wildcards: true, variables: false, ignores_case: true };
    let Ok(pattern) = Pattern::parse(pattern, syntax) else { return ActionSet::default() };
    let own = Work::default();
    let scope = Scope { work: work.unwrap_or(&own), requester: Requester::Anonymous, account: None, context: &Context::default() };
    ActionSet::of(Action::ALL.iter().copied().filter(|action| pattern.matches(Subject::of(action.name()), &scope)))
}

/// `{"Operator": {"key": "value" or ["value", ..], ..}, ..}`
fn conditions(json: &Json, variables: bool) -> Result<Box<[Condition]>, S3Error> {
    let Json::Object(operators) = json else { return malformed("Invalid policy syntax.") };
    let mut conditions = Vec::new();
    for (operator, keys) in operators {
        let Json::Object(keys) = keys else { return malformed("Invalid policy syntax.") };
        for (key, values) in keys {
            let values: Option<Vec<String>> = values.items().iter().map(Json::scalar).collect();
            let Some(values) = values.filter(|values| !values.is_empty()) else { return malformed("Invalid policy syntax.") };
            let condition = Condition::parse(operator, key, &values, variables);
            conditions.push(condition.or_else(|bad| match bad {
                BadCondition::Operator => malformed(format!("Invalid Condition type : {operator}")),
                BadCondition::Key => malformed("Policy has an invalid condition key"),
                BadCondition::Value => malformed(format!("Invalid value in Conditions for operator {operator}")),
                BadCondition::Address => malformed("Invalid IP address in Conditions"),
                BadCondition::Variable => malformed("Invalid policy syntax."),
            })?);
        }
    }
    Ok(conditions.into())
}

/// A text, or a list of them that is not empty.
fn texts<'a>(json: &'a Json, complaint: &str) -> Result<Vec<&'a str>, S3Error> {
    let text = |item: &'a Json| match item {
        Json::Text(text) => Some(text.as_str()),
        _ => None,
    };
    let texts: Option<Vec<&str>> = json.items().iter().map(text).collect();
    texts.filter(|texts| !texts.is_empty()).map_or_else(|| malformed(complaint), Ok)
}

fn malformed<T>(message: impl Into<String>) -> Result<T, S3Error> {
    Err(S3Error::with(Code::MalformedPolicy, message))
}
