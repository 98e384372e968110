//! Ownership faults that must not compile: each file in `faults` is one, with the compiler's answer beside it. Takes its time: all that its
//! package stands on is checked anew, which is why it has one of its own, with the library alone.

#[test]
fn faults_do_not_compile() {
    trybuild::TestCases::new().compile_fail("faults/*.rs");
}
