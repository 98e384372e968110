//! An object to registered memory and back, by RDMA where the server has it:
//!
//!     basin serve &
//!     AWS_ACCESS_KEY_ID=… AWS_SECRET_ACCESS_KEY=… cargo run --release --example client -- rdma://127.0.0.1:9100 http://127.0.0.1:9000
//!
//! Without a key in the environment it is that of `basin-data/store.img.credentials`, which the server has made.

use std::env;
use std::path::Path;

use basin::base::Result;
use basin::client::object::PutOptions;
use basin::client::{Client, Credentials, Options, run};

fn main() -> Result<()> {
    let endpoints = env::args().skip(1).map(|text| text.parse()).collect::<Result<_>>()?;
    let credentials = match (env::var("AWS_ACCESS_KEY_ID"), env::var("AWS_SECRET_ACCESS_KEY")) {
        (Ok(access_key), Ok(secret_key)) => Credentials { access_key, secret_key },
        _ => Credentials::read(Path::new("basin-data/store.img.credentials"))?,
    };
    run(Options::new(endpoints, credentials), async |client: Client| {
        client.create_bucket("example").await?;
        // The server reads these bytes where they are, and writes them there.
        let mut buffer = client.allocate(1 << 20).await?;
        buffer.as_mut_slice().iter_mut().zip(0u32..).for_each(|(byte, at)| *byte = (at % 251) as u8);
        let put = client.put_from("example", "array", &mut buffer, &PutOptions::default()).await?;
        println!("put by {}, etag {}, {:?}", put.way, put.etag, put.check);
        buffer.as_mut_slice().fill(0);
        let got = client.get_into("example", "array", None, &mut buffer).await?;
        println!("got {} bytes by {}, {:?}", got.bytes, got.way, got.check);
        assert!(buffer.as_slice().iter().zip(0u32..).all(|(byte, at)| *byte == (at % 251) as u8), "they are the same");
        // An array of ten million doubles: one buffer, and several requests of several windows.
        let mut long = client.allocate(80_000_000).await?;
        long.as_mut_slice().chunks_exact_mut(8).zip(0u64..).for_each(|(double, at)| double.copy_from_slice(&(at as f64).to_le_bytes()));
        let put = client.put_from("example", "doubles", &mut long, &PutOptions::default()).await?;
        println!("put 80 MB by {}, {:?}", put.way, put.check);
        long.as_mut_slice().fill(0);
        let got = client.get_into("example", "doubles", None, &mut long).await?;
        println!("got {} bytes by {}, {:?}", got.bytes, got.way, got.check);
        assert!(long.as_slice().chunks_exact(8).zip(0u64..).all(|(double, at)| double == (at as f64).to_le_bytes()), "they are the same");
        long.release();
        // One that is longer than the client's memory comes and goes in pieces.
        let mut upload = client.upload("example", "long", None, PutOptions::default())?;
        for _ in 0..20 {
            upload.write(buffer.as_slice()).await?;
        }
        upload.finish().await?;
        let (mut download, mut bytes) = (client.get("example", "long").await?, 0);
        while let Some(piece) = download.next().await? {
            bytes += piece.as_slice().len();
        }
        println!("got {bytes} bytes in pieces, {:?}", download.check());
        for trouble in client.rdma_troubles() {
            println!("no RDMA: {trouble}");
        }
        Ok(())
    })
}
