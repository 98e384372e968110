//! KTAP, the kernel's test output format, version 1.

use std::io::{self, Write};

use super::{Ended, Found};

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The feature is there and works.
    pub ok: usize,
    /// It is there and does not work.
    pub not_ok: usize,
    /// It is not there, or there was no device to try it on.
    pub skipped: usize,
}

pub(super) struct Report<'a> {
    out: &'a mut dyn Write,
    counts: Counts,
}

impl<'a> Report<'a> {
    pub fn begin(out: &'a mut dyn Write, tests: usize) -> io::Result<Report<'a>> {
        writeln!(out, "KTAP version 1\n1..{tests}")?;
        Ok(Report { out, counts: Counts::default() })
    }

    /// A line for the result; what was found goes on lines of its own before it.
    pub fn tell(&mut self, name: &str, found: Found) -> io::Result<()> {
        let Counts { ok, not_ok, skipped } = &mut self.counts;
        let number = *ok + *not_ok + *skipped + 1;
        match found {
            Ok(what) => {
                *ok += 1;
                comment(self.out, name, &what)?;
                writeln!(self.out, "ok {number} {name}")?;
            }
            Err(Ended::Skipped(why)) => {
                *skipped += 1;
                writeln!(self.out, "ok {number} {name} # SKIP {}", one_line(&why))?;
            }
            Err(Ended::Failed(why)) => {
                *not_ok += 1;
                comment(self.out, name, &why)?;
                writeln!(self.out, "not ok {number} {name}")?;
            }
        }
        self.out.flush()
    }

    pub fn end(self) -> io::Result<Counts> {
        let Counts { ok, not_ok, skipped } = self.counts;
        writeln!(self.out, "# Totals: pass:{ok} fail:{not_ok} xfail:0 xpass:0 skip:{skipped} error:0")?;
        Ok(self.counts)
    }
}

fn comment(out: &mut dyn Write, name: &str, text: &str) -> io::Result<()> {
    text.lines().filter(|line| !line.trim().is_empty()).try_for_each(|line| writeln!(out, "# {name}: {}", line.trim()))
}

/// A directive ends with its line, and `#` begins one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('#', "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_those_of_ktap() {
        let mut out = Vec::new();
        let mut report = Report::begin(&mut out, 3).unwrap();
        report.tell("one", Ok("64 MiB".into())).unwrap();
        report.tell("two", Err(Ended::Skipped("no device\n  given # here".into()))).unwrap();
        report.tell("three", Err(Ended::Failed("it said\nEIO".into()))).unwrap();
        assert_eq!(report.end().unwrap(), Counts { ok: 1, not_ok: 1, skipped: 1 });
        let expected = "KTAP version 1\n1..3\n# one: 64 MiB\nok 1 one\nok 2 two # SKIP no device given  here\n# three: it said\n\
                        # three: EIO\nnot ok 3 three\n# Totals: pass:1 fail:1 xfail:0 xpass:0 skip:1 error:0\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
