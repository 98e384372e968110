//! Interleaved pairs and their statistics.

use std::fmt::Write;
use std::io::IsTerminal;

/// A figure that is compared.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    pub name: &'static str,
    /// Digits after the point.
    pub digits: usize,
    /// What our side divided by theirs must be, at the median.
    pub wanted: Wanted,
}

/// A bound on a ratio.
#[derive(Clone, Copy, Debug)]
pub enum Wanted {
    AtLeast(f64),
    AtMost(f64),
    /// Shown for the reader.
    Nothing,
}

/// Medians and the range of one figure over all pairs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

impl Spread {
    /// Of at least one value.
    pub fn of(values: &[f64]) -> Spread {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { sorted[middle] } else { (sorted[middle - 1] + sorted[middle]) / 2.0 };
        Spread { median, min: sorted[0], max: sorted[sorted.len() - 1] }
    }

    /// As text, with so many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$} – {:.digits$})", self.median, self.min, self.max)
    }
}

/// Runs `ours` and `theirs` in turn, `count` times; each gives one value for every metric. The result is one pair of values a metric
/// and a turn.
pub fn interleave(
    count: u32,
    mut ours: impl FnMut() -> Result<Vec<f64>, String>,
    mut theirs: impl FnMut() -> Result<Vec<f64>, String>,
) -> Result<Vec<Vec<(f64, f64)>>, String> {
    let live = std::io::stderr().is_terminal();
    let mut turns = Vec::new();
    for turn in 1..=count {
        if live {
            eprint!("\r\u{1b}[K  pair {turn} of {count}");
        }
        let pair = ours()?.into_iter().zip(theirs()?).collect::<Vec<_>>();
        turns.push(pair);
    }
    if live {
        eprint!("\r\u{1b}[K");
    }
    let metrics = turns.first().map_or(0, Vec::len);
    Ok((0..metrics).map(|metric| turns.iter().map(|turn| turn[metric]).collect()).collect())
}

/// One side of a comparison: a value for every metric.
pub type Side<'a> = &'a dyn Fn() -> Result<Vec<f64>, String>;

/// Runs all sides `count` times, each time in the opposite order (AB, BA, AB …): the values of each round and side.
pub fn rounds(count: u32, sides: &[Side]) -> Result<Vec<Vec<Vec<f64>>>, String> {
    let live = std::io::stderr().is_terminal();
    let mut rounds = Vec::new();
    for round in 1..=count {
        if live {
            eprint!("\r\u{1b}[K  round {round} of {count}");
        }
        let is_forward = round % 2 == 1;
        let mut values = Vec::new();
        for turn in 0..sides.len() {
            values.push(sides[if is_forward { turn } else { sides.len() - 1 - turn }]()?);
        }
        if !is_forward {
            values.reverse();
        }
        rounds.push(values);
    }
    if live {
        eprint!("\r\u{1b}[K");
    }
    Ok(rounds)
}

/// Of [`rounds`] the pairs of two sides, as [`interleave`] gives them.
pub fn pairs(rounds: &[Vec<Vec<f64>>], ours: usize, theirs: usize) -> Vec<Vec<(f64, f64)>> {
    let metrics = rounds.first().map_or(0, |round| round[ours].len());
    (0..metrics).map(|metric| rounds.iter().map(|round| (round[ours][metric], round[theirs][metric])).collect()).collect()
}

/// How a bound came out, for people.
pub fn verdict(met: bool) -> &'static str {
    if met { "met" } else { "**missed**" }
}

impl Wanted {
    /// Whether a median ratio meets it, and both in words.
    pub fn judge(self, ratio: f64) -> (bool, String) {
        match self {
            Wanted::AtLeast(bound) => (ratio >= bound, format!("≥ {bound:.2}: {}", verdict(ratio >= bound))),
            Wanted::AtMost(bound) => (ratio <= bound, format!("≤ {bound:.2}: {}", verdict(ratio <= bound))),
            Wanted::Nothing => (true, String::new()),
        }
    }
}

/// A Markdown table: one line a metric, with the ratio's bound and whether it was met; and whether all were.
pub fn table(names: (&str, &str), metrics: &[Metric], pairs: &[Vec<(f64, f64)>]) -> (String, bool) {
    let mut all = true;
    let mut out = format!("| median (min – max) | {} | {} | ratio | wanted |\n| --- | ---: | ---: | ---: | --- |\n", names.0, names.1);
    for (metric, values) in metrics.iter().zip(pairs) {
        let side = |pick: fn(&(f64, f64)) -> f64| Spread::of(&values.iter().map(pick).collect::<Vec<_>>()).show(metric.digits);
        let ratio = Spread::of(&values.iter().map(|(ours, theirs)| ours / theirs).collect::<Vec<_>>());
        let (met, wanted) = metric.wanted.judge(ratio.median);
        all &= met;
        let _ = writeln!(out, "| {} | {} | {} | {} | {wanted} |", metric.name, side(|pair| pair.0), side(|pair| pair.1), ratio.show(3));
    }
    (out, all)
}

/// A Markdown table of one side alone, with a lower bound for its first metric; and whether that was met.
pub fn alone(name: &str, metrics: &[Metric], bound: f64, rounds: &[Vec<f64>]) -> (String, bool) {
    let mut out = format!("| median (min – max) | {name} | wanted |\n| --- | ---: | --- |\n");
    let mut met = true;
    for (at, metric) in metrics.iter().enumerate() {
        let spread = Spread::of(&rounds.iter().map(|round| round[at]).collect::<Vec<_>>());
        let mut wanted = String::new();
        if at == 0 {
            met = spread.median >= bound;
            wanted = format!("≥ {bound}: {}", verdict(met));
        }
        let _ = writeln!(out, "| {} | {} | {wanted} |", metric.name, spread.show(metric.digits));
    }
    (out, met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(Spread::of(&[3.0, 1.0, 2.0]), Spread { median: 2.0, min: 1.0, max: 3.0 });
        assert_eq!(Spread::of(&[4.0, 1.0, 2.0, 3.0]).median, 2.5);
    }

    #[test]
    fn sides_take_turns_and_ratios_are_of_pairs() {
        let order = std::cell::RefCell::new(String::new());
        let mut speed = 1.0;
        let pairs = interleave(
            3,
            || {
                order.borrow_mut().push('a');
                speed *= 2.0;
                Ok(vec![speed])
            },
            || {
                order.borrow_mut().push('b');
                Ok(vec![4.0])
            },
        )
        .expect("both sides answer");
        assert_eq!(order.into_inner(), "ababab");
        assert_eq!(pairs, [[(2.0, 4.0), (4.0, 4.0), (8.0, 4.0)]]);
        let metric = |wanted| [Metric { name: "IOPS", digits: 0, wanted }];
        let (text, met) = table(("ours", "theirs"), &metric(Wanted::AtLeast(1.0)), &pairs);
        assert!(met && text.contains("| 1.000 (0.500 – 2.000) | ≥ 1.00: met |"), "{text}");
        let (text, met) = table(("ours", "theirs"), &metric(Wanted::AtMost(0.9)), &pairs);
        assert!(!met && text.contains("≤ 0.90: **missed**"), "{text}");
    }

    #[test]
    fn rounds_go_there_and_back() {
        let order = std::cell::RefCell::new(String::new());
        let side = |name: char| {
            let order = &order;
            move || {
                order.borrow_mut().push(name);
                Ok(vec![f64::from(u32::from(name)), order.borrow().len() as f64])
            }
        };
        let (a, b, c) = (side('a'), side('b'), side('c'));
        let rounds = rounds(3, &[&a, &b, &c]).expect("all sides answer");
        assert_eq!(order.borrow().as_str(), "abccbaabc");
        assert_eq!(pairs(&rounds, 0, 2), [[(97.0, 99.0); 3], [(1.0, 3.0), (6.0, 4.0), (7.0, 9.0)]]);
    }

    #[test]
    fn one_side_has_a_bound_of_its_own() {
        let metrics = ["gets a second", "ns"].map(|name| Metric { name, digits: 0, wanted: Wanted::Nothing });
        let rounds = [vec![900.0, 5.0], vec![1200.0, 6.0], vec![1000.0, 7.0]];
        let (text, met) = alone("basin", &metrics, 1e3, &rounds);
        assert!(met && text.contains("| gets a second | 1000 (900 – 1200) | ≥ 1000: met |\n| ns | 6 (5 – 7) |  |"), "{text}");
        assert!(!alone("basin", &metrics, 1001.0, &rounds).1);
    }
}
