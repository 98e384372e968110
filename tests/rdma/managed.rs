//! Connections by the kernel's connection manager, where they fail: peers that are not there or silent, and a device that is taken out.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::Command;

use basin::base::Rng;
use basin::base::error::ErrorKind;
use basin::device::rdma::{Hca, HcaEnv, QpConfig, RdmaName, Transport, port};
use futures::future::{FutureExt, join};

use super::mixed::{DEVICE, OF_RXE, OF_SOFT, in_lab, run};
use super::world::{End, World, pattern};

fn end(device: &str, address: &str) -> End {
    let open = |env| Hca::open(HcaEnv { address: address.parse().ok(), ..env }, &RdmaName::Verbs(device.to_owned())).unwrap();
    End::open(Rng::from_kernel().u64(), open)
}

#[test]
fn a_peer_that_is_not_there_or_silent_is_named() {
    in_lab(|| {
        let end = end(DEVICE, OF_RXE);
        let qp = end.hca.create_qp(&QpConfig::default()).unwrap();
        // No host has the first address; the second one's has nobody at RoCE's port.
        for (host, why) in [("10.80.0.99", "10.80.0.99:7174"), (OF_SOFT, "no answer")] {
            let there = SocketAddr::new(host.parse().unwrap(), 7174);
            let error = end.run_alone(qp.connect_to(there, b"")).err().expect("nobody is there");
            let text = error.to_string();
            assert!(error.kind() == ErrorKind::Failed && text.contains(why) && text.contains("4791"), "{text}");
        }
        let v6 = "[fd80::1]:7174".parse().unwrap();
        assert_eq!(end.run_alone(qp.connect_to(v6, b"")).err().map(|error| error.kind()), Some(ErrorKind::Usage));
        assert_eq!(end.run_alone(qp.connect_to(v6, &[0; 57])).err().map(|error| error.kind()), Some(ErrorKind::Usage));
        let datagrams = end.hca.create_qp(&QpConfig { transport: Transport::Ud, ..QpConfig::default() }).unwrap();
        let there = SocketAddr::new(OF_SOFT.parse().unwrap(), 7174);
        assert_eq!(end.run_alone(datagrams.connect_to(there, b"")).err().map(|error| error.kind()), Some(ErrorKind::Usage));
        // One that nobody waits for any more.
        assert!(qp.connect_to(there, b"").now_or_never().is_none());
    });
}

#[test]
fn a_device_that_is_taken_out_ends_its_connections() {
    in_lab(|| {
        const GONE: &str = "rxe_gone";
        const ADDRESS: &str = "10.82.0.1";
        for line in [
            "ip link add gone type dummy".to_owned(),
            format!("ip address add {ADDRESS}/24 dev gone"),
            "ip link set gone up".to_owned(),
            format!("rdma link add {GONE} type rxe netdev gone"),
        ] {
            run(&line);
        }
        let mut world = World::over(end(GONE, ADDRESS), end(GONE, ADDRESS));
        let there = SocketAddr::new(ADDRESS.parse().unwrap(), 7199);
        let listener = world.b.hca.listen(there.port()).unwrap();
        let (a, b) = (world.a.hca.create_qp(&QpConfig::default()).unwrap(), world.b.hca.create_qp(&QpConfig::default()).unwrap());
        let passive = async { listener.request().await.unwrap().accept(&b, b"").await };
        let (active, passive) = world.run(join(a.connect_to(there, b""), passive));
        let (active, passive) = (active.unwrap(), passive.unwrap());
        let mut removal = Command::new("rdma").args(["link", "delete", GONE]).spawn().unwrap();
        let ((), ((), request)) = world.run(join(active.ended(), join(passive.ended(), listener.request())));
        let error = request.err().expect("the device is gone");
        assert!(error.kind() == ErrorKind::Unavailable && error.to_string().contains(GONE), "{error}");
        let again = a.connect_to(there, b"").now_or_never().expect("known at once").err().expect("the device is gone");
        assert!(matches!(again.kind(), ErrorKind::Unavailable | ErrorKind::Usage), "{again}");
        drop((a, b, active, passive, listener));
        world.assert_balanced();
        // The kernel waits until nobody has it open.
        drop(world);
        assert!(removal.wait().unwrap().success());
        run("ip link delete gone");
    });
}

#[test]
fn an_address_that_went_and_came_back_is_found_where_it_is_now() {
    in_lab(|| {
        const FLAPPING: &str = "rxe_flap";
        const ADDRESS: &str = "10.83.0.1";
        for line in [
            "ip link add flap type dummy".to_owned(),
            format!("ip address add {ADDRESS}/24 dev flap"),
            "ip link set flap up".to_owned(),
            format!("rdma link add {FLAPPING} type rxe netdev flap"),
        ] {
            run(&line);
        }
        let place = || {
            let address = ADDRESS.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped();
            port::gids(&port::directory(FLAPPING, 1)).into_iter().find(|gid| gid.address == address).map(|gid| gid.index)
        };
        let mut world = World::over(end(FLAPPING, ADDRESS), end(FLAPPING, ADDRESS));
        let mut pairs = Vec::new();
        let first = place().expect("the port has the interface's address");
        let mut exchange = |world: &mut World| {
            let (a, b) = (world.a.hca.create_qp(&QpConfig::default()).unwrap(), world.b.hca.create_qp(&QpConfig::default()).unwrap());
            a.connect(&b.local()).unwrap();
            b.connect(&a.local()).unwrap();
            let receiving = b.recv(world.b.slab.run(64).unwrap());
            let (sent, received) = world.run(join(a.send(world.a.filled(64, 7), None), receiving));
            drop(sent.unwrap());
            assert_eq!(received.unwrap().run.as_slice(), pattern(64, 7));
            // The kernel keeps the place of an address that queue pairs use.
            pairs.push((a, b));
        };
        exchange(&mut world);
        run(&format!("ip address del {ADDRESS}/24 dev flap"));
        run(&format!("ip address add {ADDRESS}/24 dev flap"));
        for turn in 0.. {
            assert!(turn < 2000, "the address is not back");
            world.settle();
            std::thread::sleep(std::time::Duration::from_millis(5));
            // Known to the kernel, and the events of that were seen.
            if turn > 100 && place().is_some() {
                break;
            }
        }
        assert_ne!(place(), Some(first), "the address is where it was: this shows nothing");
        exchange(&mut world);
        drop(pairs);
        world.settle();
        world.assert_balanced();
        drop(world);
        run(&format!("rdma link delete {FLAPPING}"));
        run("ip link delete flap");
    });
}

#[test]
fn listeners_of_two_devices_share_the_kernel_s_ports() {
    in_lab(|| {
        let (one, other) = (end(DEVICE, OF_RXE), end(DEVICE, OF_RXE));
        let listener = one.hca.listen(7177).unwrap();
        let error = other.hca.listen(7177).err().expect("the port is taken");
        assert!(error.kind() == ErrorKind::Busy && error.to_string().contains("7177"), "{error}");
        drop(listener);
        other.hca.listen(7177).unwrap();
    });
}
