//! Ownership faults that must not compile: each file in tests/ownership is one, with the compiler's answer beside it. Takes its time: all
//! that the library stands on is checked anew.

#[test]
fn faults_do_not_compile() {
    trybuild::TestCases::new().compile_fail("tests/ownership/*.rs");
}
