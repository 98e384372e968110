//! What holds on real kernels with RDMA and NVMe, in a guest of the VM lab: docs/LAB.md tells what the guest has and how to add a test.
//! Needs the VM lab; says SKIPPED elsewhere. Takes its time.

mod doctor;
mod guest;
mod interop;
mod kernel;
mod nvme;
mod peer;
mod rdma;
mod verbs;
