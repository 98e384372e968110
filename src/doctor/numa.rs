//! Where the devices sit: a region, its cores and its devices should share a node.

use super::block::Target;
use super::{Area, Check, read};
use crate::base::topology;
use std::path::Path;

/// The machine, and each device that was named.
pub(super) fn checks(interface: Option<&str>, rdma: Option<&str>, target: Option<&Target>) -> Vec<Check> {
    let nodes = topology::nodes();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut checks = vec![Check::ok(Area::Numa, "machine", format!("{}, {}", super::count(nodes, "node"), super::count(cores, "core")))];
    let mut devices: Vec<(String, Option<u32>)> = Vec::new();
    devices.extend(interface.map(|name| (name.to_owned(), topology::device_node(&Path::new("/sys/class/net").join(name)))));
    devices.extend(rdma.map(|name| (name.to_owned(), topology::device_node(&Path::new("/sys/class/infiniband").join(name)))));
    devices.extend(target.and_then(|target| Some((target.path.display().to_string(), topology::device_node(&target.sysfs()?)))));
    checks.extend(devices.iter().map(|(name, node)| place(name, *node, nodes)));
    let mut known: Vec<u32> = devices.iter().filter_map(|(_, node)| *node).collect();
    known.dedup();
    if known.len() > 1 {
        let first = known[0];
        let cpus = read(format!("/sys/devices/system/node/node{first}/cpulist")).unwrap_or_default();
        let remedy = format!("use devices of one node, or processors of the node of the busiest: taskset -c {cpus} is node {first}");
        let cause = "every byte crosses the link between the nodes";
        checks.push(Check::warning(Area::Numa, "placement", "devices on different nodes", cause, remedy));
    }
    checks
}

fn place(name: &str, node: Option<u32>, nodes: usize) -> Check {
    match (node, nodes) {
        (Some(node), _) => Check::ok(Area::Numa, name, format!("node {node}")),
        (None, 1) => Check::ok(Area::Numa, name, "node 0, the only one"),
        (None, _) => {
            let cause = "the kernel names no node for it: it is virtual, or the firmware does not say";
            Check::unknown(Area::Numa, name, cause, "try the processors of each node (taskset -c) and compare")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Status;
    use super::*;

    #[test]
    fn an_unknown_node_matters_only_where_there_are_several() {
        assert_eq!(place("eth0", None, 1).status, Status::Ok);
        assert_eq!(place("eth0", None, 2).status, Status::Unknown);
        assert_eq!(place("eth0", Some(1), 2).found, "node 1");
    }
}
