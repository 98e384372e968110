//! What is configured of queues and of memory: `cq_size`, `max_sge`, `enable_zero_copy`.

use super::*;

const BOUNCED: &str = "basin_copied_bytes_total{cause=\"bounce\"}";
const BY_DEVICE: &str = "basin_copied_bytes_total{cause=\"rdma\"}";

/// The same bytes, by every mode, with the store's memory and with memory of RDMA's own; of the latter each byte that is no message is
/// copied once more, and that is told.
#[test]
fn without_zero_copy_what_is_moved_goes_through_memory_of_its_own() {
    if is_lab() {
        return;
    }
    for is_on in [true, false] {
        let metrics = free_address();
        let variables = [("BASIN_METRICS_LISTEN", metrics.to_string()), ("BASIN_RDMA_ENABLE_ZERO_COPY", is_on.to_string())];
        let variables = variables.each_ref().map(|(name, value)| (*name, value.as_str()));
        let server = Server::start_at(2, "256M", "soft", &variables);
        let address = server.address;
        for device in ["soft", "soft:udp"] {
            client(device, async move |ground| objects(&ground, address, device).await);
        }
        client("soft", async move |ground| tokens(&ground, address, "soft").await);
        assert_eq!(metric(metrics, BOUNCED) > 0, !is_on);
        assert!(metric(metrics, BY_DEVICE) > 0);
        client("soft", async move |ground| counts(&ground, address, metrics, is_on).await);
    }
}

/// A put and two gets of 1 MiB, the second of which is known.
async fn counts(ground: &Ground, address: SocketAddr, metrics: SocketAddr, is_on: bool) {
    const BYTES: u64 = 1 << 20;
    let mut front = Http::connect(&ground.core, address).await.unwrap();
    assert_eq!(http(&mut front, "PUT", "/bounds", &[], b"").await.0, 200);
    let native = Native::connect(ground, address, &signer("main"), TERMS).await.unwrap();
    let content = pattern(BYTES as usize, 11);
    for (number, is_put) in [true, false, false].into_iter().enumerate() {
        let (bounced, by_device) = (metric(metrics, BOUNCED), metric(metrics, BY_DEVICE));
        if is_put {
            assert_eq!(put(&native, "/bounds/one", "", run_of(ground, &content)).await.status, 200);
        } else {
            let got = ask(&native, Method::Get, "/bounds/one", "", Some(room(ground, BYTES as usize))).await;
            assert!(got.status == 200 && got.bytes() == content);
        }
        // The answer may be here before it is counted.
        let expected = if is_on { 0 } else { BYTES };
        for _ in 0..200 {
            if metric(metrics, BOUNCED) - bounced == expected && metric(metrics, BY_DEVICE) - by_device >= BYTES {
                break;
            }
            ground.core.sleep(basin::base::Nanos::from_millis(10)).await;
        }
        assert_eq!(metric(metrics, BOUNCED) - bounced, expected, "{number}");
        assert!(metric(metrics, BY_DEVICE) - by_device >= BYTES, "{number}: the soft device copies each byte once");
    }
    native.close();
}

#[test]
fn hipobj_goes_without_zero_copy_too() {
    if is_lab() {
        return;
    }
    let variables = [("BASIN_RDMA_ADDRESS", "127.0.0.3"), ("BASIN_RDMA_UDP_PORT", "4791"), ("BASIN_RDMA_ENABLE_ZERO_COPY", "false")];
    let server = Server::start_at(1, "256M", "soft:udp", &variables);
    let address = server.address;
    client_at("soft:udp", Some("127.0.0.4:4791".parse().unwrap()), async move |ground| hipobj(&ground, address).await);
}

/// Sessions whose queues find no room are refused, and those that are closed leave theirs.
#[test]
fn sessions_fit_the_completion_queue_and_a_request_its_pieces() {
    if is_lab() {
        return;
    }
    let variables =
        [("BASIN_RDMA_CQ_SIZE", "200"), ("BASIN_RDMA_MAX_SEND_WR", "120"), ("BASIN_RDMA_MAX_RECV_WR", "64"), ("BASIN_RDMA_MAX_SGE", "1")];
    let server = Server::start_at(1, "256M", "soft", &variables);
    let address = server.address;
    // One piece is what all that the server moves has.
    client("soft", async move |ground| objects(&ground, address, "soft").await);
    for _ in 0..2 {
        client("soft", async move |ground| {
            // 16 requests: 80 in the send queue, and 17 receives. The client before has gone, or is about to be seen gone.
            let connect = async || Native::connect(&ground, address, &signer("main"), TERMS).await;
            let mut held = Vec::new();
            for _ in 0..400 {
                match connect().await {
                    Ok(native) => held.push(native),
                    Err(_) if held.len() < 2 => ground.core.sleep(basin::base::Nanos::from_millis(50)).await,
                    Err(refused) => {
                        let refused = refused.to_string();
                        assert!(refused.contains("97 requests") && refused.contains("200 entries") && refused.contains("194"), "{refused}");
                        return;
                    }
                }
                assert!(held.len() <= 2, "a third has no room");
            }
            panic!("{} sessions have room", held.len());
        });
    }
}

/// What a device does not have is told when the server starts.
#[test]
fn more_pieces_than_the_device_has_are_refused() {
    if is_lab() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_basin"));
    command.arg("serve").arg(place.path().join("store.img")).args([
        "--listen",
        &free_address().to_string(),
        "--size",
        "64M",
        "--rdma-port",
        "0",
    ]);
    let output = command
        .env("BASIN_RDMA_MAX_SGE", "64")
        .env("BASIN_AUTH_ACCESS_KEY", "AKIAEXAMPLE")
        .env("BASIN_AUTH_SECRET_KEY", "a secret of the environment")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("64 pieces of memory") && said.contains("rdma.max_sge"), "{said}");
}
