//! Prometheus' text format, version 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).

use std::fmt::Write;

/// What the format is called in an answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a number does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// It only grows.
    Counter,
    /// It goes up and down.
    Gauge,
    /// Several that belong together, by upper bound.
    Histogram,
}

/// A family of numbers: those of one name.
#[derive(Clone, Copy, Debug)]
pub struct Family {
    /// The name.
    pub name: &'static str,
    /// What they do.
    pub kind: Type,
    /// What they say, in one line.
    pub help: &'static str,
}

/// A page of numbers.
#[derive(Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a family: its numbers follow at once.
    pub fn begin(&mut self, family: &Family) {
        let Family { name, kind, help } = family;
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        let _ = writeln!(self.text, "# HELP {name} {}\n# TYPE {name} {kind}", help.replace('\\', "\\\\").replace('\n', "\\n"));
    }

    /// A number of a family, whose name may have something behind it.
    pub fn number(&mut self, family: &Family, behind: &str, labels: &[(&str, &str)], number: Number) {
        let _ = write!(self.text, "{}{behind}", family.name);
        for (at, (name, value)) in labels.iter().enumerate() {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{}{name}=\"{value}\"", if at == 0 { '{' } else { ',' });
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = match number {
            Number::Whole(number) => writeln!(self.text, " {number}"),
            Number::Real(number) => writeln!(self.text, " {number}"),
        };
    }

    /// A family of one number.
    pub fn one(&mut self, family: &Family, number: impl Into<Number>) {
        self.begin(family);
        self.number(family, "", &[], number.into());
    }

    /// A family of one number for each value of a label.
    pub fn each<L: AsRef<str>>(&mut self, family: &Family, label: &str, numbers: impl IntoIterator<Item = (L, u64)>) {
        self.begin(family);
        for (value, number) in numbers {
            self.number(family, "", &[(label, value.as_ref())], number.into());
        }
    }

    /// What was written.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A number.
#[derive(Clone, Copy, Debug)]
pub enum Number {
    /// A whole one.
    Whole(u64),
    /// Any.
    Real(f64),
}

impl From<u64> for Number {
    fn from(number: u64) -> Number {
        Number::Whole(number)
    }
}

impl From<f64> for Number {
    fn from(number: f64) -> Number {
        Number::Real(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_end_a_line_or_a_value_does_not() {
        let family = Family { name: "a_total", kind: Type::Counter, help: "of \\ and\nmore" };
        let mut page = Page::default();
        page.begin(&family);
        page.number(&family, "", &[("one", "\"\\\n"), ("two", "é")], 1u64.into());
        page.number(&family, "", &[], 0.25.into());
        page.each(&Family { kind: Type::Gauge, ..family }, "core", [("0", 7), ("1", u64::MAX)]);
        let text = "# HELP a_total of \\\\ and\\nmore\n# TYPE a_total counter\na_total{one=\"\\\"\\\\\\n\",two=\"é\"} 1\na_total 0.25\n\
            # HELP a_total of \\\\ and\\nmore\n# TYPE a_total gauge\na_total{core=\"0\"} 7\na_total{core=\"1\"} 18446744073709551615\n";
        assert_eq!(page.into_text(), text);
    }
}
