//! `basin cp` and the others, as people call them.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use super::proxy::{Evil, Proxy};
use super::{KEY, SECRET, Server, both, curl_gets, curl_puts, pattern, server};

fn basin(endpoints: &str, place: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new("timeout");
    command.args(["100", env!("CARGO_BIN_EXE_basin")]).args(arguments).current_dir(place).stdin(Stdio::null());
    command.env("BASIN_ENDPOINT", endpoints).env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env_remove("BASIN_CREDENTIALS").output().unwrap()
}

fn done(server: &Server, arguments: &[&str]) -> String {
    let output = basin(&both(server).join(","), server.place.path(), arguments);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn refused(endpoints: &str, place: &Path, arguments: &[&str], code: i32, said: &str) {
    let output = basin(endpoints, place, arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(code) && text.contains(said), "{arguments:?}: {:?}, {text}", output.status.code());
    assert!(text.starts_with("basin: ") || code == 2, "{text}");
}

#[test]
fn what_is_to_be_encrypted_is() {
    let server = server();
    let place = server.place.path().to_path_buf();
    done(&server, &["mb", "s3://sealed"]);
    let content = pattern(9 << 20, 6);
    std::fs::write(place.join("long"), &content).unwrap();
    std::fs::write(place.join("small"), &content[..7]).unwrap();
    let is = |key: &str, how: &str| {
        let told = done(&server, &["stat", &format!("s3://sealed/{key}")]);
        assert!(told.lines().any(|line| line == format!("encrypted  {how}")), "{key}: {told}");
    };
    for name in ["long", "small"] {
        for (options, how) in
            [(&["--sse", "AES256"][..], "AES256"), (&["--sse", "aws:kms", "--sse-kms-key-id", "of/mine"], "aws:kms of/mine")]
        {
            done(&server, &[&["cp", name, "s3://sealed/"], options].concat());
            is(name, how);
            done(&server, &["cp", &format!("s3://sealed/{name}"), "back"]);
            assert_eq!(std::fs::read(place.join("back")).unwrap(), std::fs::read(place.join(name)).unwrap());
        }
    }
    done(&server, &["cp", "--sse", "AES256", "s3://sealed/small", "s3://sealed/copy"]);
    is("copy", "AES256");
    assert!(!done(&server, &["cp", "s3://sealed/copy", "s3://sealed/plain", "-q"]).contains("error"));
    let told = done(&server, &["stat", "--json", "s3://sealed/plain"]);
    assert_eq!(serde_json::from_str::<serde_json::Value>(&told).unwrap()["encryption"], serde_json::Value::Null);
    let endpoints = both(&server).join(",");
    refused(&endpoints, &place, &["cp", "--sse", "rot13", "small", "s3://sealed/"], 2, "AES256");
    refused(&endpoints, &place, &["cp", "--sse-kms-key-id", "k", "small", "s3://sealed/"], 2, "--sse");
    refused(&endpoints, &place, &["cp", "--sse", "AES256", "--sse-kms-key-id", "k", "small", "s3://sealed/"], 2, "aws:kms");
}

#[test]
fn files_and_trees_are_copied_there_and_back() {
    let server = server();
    let place = server.place.path().to_path_buf();
    assert_eq!(done(&server, &["mb", "s3://tree"]), "");
    let content = pattern(9 << 20, 5);
    std::fs::create_dir_all(place.join("from/deep/er")).unwrap();
    for (name, bytes) in [("from/a b", 0), ("from/deep/ü", 5), ("from/deep/er/long", content.len())] {
        std::fs::write(place.join(name), &content[..bytes]).unwrap();
    }
    let line = done(&server, &["cp", "-r", "from", "s3://tree/under"]);
    assert!(line.starts_with("3 objects, 9.0 MiB in ") && line.ends_with("by rdma soft:shm\n"), "{line}");
    assert!(curl_gets(&server, "/tree/under/deep/er/long") == content);
    done(&server, &["cp", "--recursive", "s3://tree/under", "to"]);
    assert!(Command::new("diff").args(["-r", "from", "to"]).current_dir(&place).status().unwrap().success());
    let line = done(&server, &["cp", "s3://tree/under/deep/er/long", "to/"]);
    assert!(line.starts_with("1 object, 9 MiB in ") && line.ends_with("by rdma soft:shm\n"), "{line}");
    assert!(std::fs::read(place.join("to/long")).unwrap() == content);
    done(&server, &["cp", "-r", "s3://tree/under/deep", "s3://tree/copy"]);
    let listed = done(&server, &["ls", "-r", "--json", "s3://tree/copy"]);
    let lines: Vec<serde_json::Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let found: Vec<_> = lines.iter().map(|line| (line["key"].as_str().unwrap(), line["size"].as_u64().unwrap())).collect();
    assert_eq!(found, [("copy/er/long", content.len() as u64), ("copy/ü", 5)]);
    assert_eq!(done(&server, &["ls", "s3://tree/"]).split_whitespace().collect::<Vec<_>>(), ["copy/", "under/"]);
    assert!(done(&server, &["ls"]).ends_with("s3://tree\n"));
    let told = done(&server, &["stat", "s3://tree/copy/ü"]);
    assert!(told.contains("bytes      5 (5 B)\n") && told.contains("asked by   rdma soft:shm\n"), "{told}");
    let crc = format!("{:016x}", crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, &content[..5]));
    assert!(told.contains(&format!("crc64nvme  {crc}\n")), "{told}");
    let cat = basin(&both(&server).join(","), &place, &["cat", "s3://tree/copy/er/long"]);
    assert!(cat.status.success() && cat.stdout == content);
    done(&server, &["rm", "s3://tree/copy/ü"]);
    done(&server, &["rm", "-r", "s3://tree/"]);
    assert_eq!(done(&server, &["ls", "s3://tree"]), "");
    done(&server, &["rb", "s3://tree"]);
    assert_eq!(done(&server, &["ls"]), "");
}

#[test]
fn what_is_wrong_is_said_with_its_object_and_its_remedy() {
    let server = server();
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    std::fs::write(place.join("file"), b"file").unwrap();
    done(&server, &["mb", "s3://there"]);
    done(&server, &["cp", "file", "s3://there/a/../b"]);
    done(&server, &["cp", "file", "s3://there/one"]);
    for (arguments, code, said) in [
        (&["cp", "file", "s3://none/key"][..], 3, "PUT s3://none/key at "),
        (&["cp", "file", "s3://none/key"], 3, "to mend it: make it: basin mb s3://none"),
        (&["cp", "s3://there/none", "x"], 3, "HEAD s3://there/none at "),
        (&["stat", "s3://there/none"], 3, "to mend it: see what is there"),
        (&["ls", "s3://none"], 3, "NoSuchBucket"),
        (&["cp", "nofile", "s3://there/"], 3, "reading nofile: ENOENT"),
        (&["cp", "file", "file2"], 2, "neither is an object"),
        (&["cp", ".", "s3://there/"], 2, "no name that a key can have"),
        (&["cp", "../.", "s3://there/x"], 2, "is a directory"),
        (&["rm", "s3://there"], 2, "there is no key in it"),
        (&["rb", "s3://there/key"], 2, "there is a key in it"),
        (&["rb", "s3://there"], 1, "basin rm -r s3://there"),
        (&["cp", "-r", "s3://there", "out"], 2, "s3://there/a/../b: no file below out can have that name"),
        (&["cp", "--no-clobber", "file", "s3://there/one"], 1, "PreconditionFailed"),
        (&["ls", "--endpoint", "ftp://x"], 2, "'ftp://x' is no endpoint"),
        (&["ls", "--rdma", "off", "--credentials", "file"], 2, "file: there are no access_key and secret_key in it"),
        (&["ls", "--access-key", "NOBODY"], 1, "to mend it: check the access key"),
        (&["ls", "--secret-key", "wrong"], 1, "to mend it: check the secret"),
    ] {
        refused(&all, &place, arguments, code, said);
    }
    assert!(!place.join("out").exists() && !place.join("x").exists());
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    refused(&format!("http://{free}"), &place, &["cat", "s3://there/one"], 1, "to mend it: start the server first");
    refused(&format!("rdma://{free}"), &place, &["cat", "s3://there/one"], 1, "ECONNREFUSED");
    // The port of RDMA speaks HTTP, too.
    assert!(basin(&format!("rdma://{}", server.address), &place, &["cat", "--rdma", "off", "s3://there/one"]).stdout == b"file");
}

#[test]
fn a_file_is_never_overwritten_half_way() {
    let server = server();
    let place = server.place.path().join("dir");
    std::fs::create_dir(&place).unwrap();
    done(&server, &["mb", "s3://half"]);
    curl_puts(&server, "/half/long", &pattern(3 << 20, 6));
    std::fs::write(place.join("file"), b"old").unwrap();
    let proxy = Proxy::begin(server.address, Evil::FlipAnswer(100_000));
    refused(&proxy.endpoint(), &place, &["cp", "s3://half/long", "file"], 1, "GET s3://half/long: 3145728 bytes came with the checksum");
    assert!(proxy.count() > 0);
    assert_eq!(std::fs::read(place.join("file")).unwrap(), b"old");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 1, "nothing is left of the half");
    done(&server, &["cp", "s3://half/long", "dir/file"]);
    assert!(std::fs::read(place.join("file")).unwrap() == pattern(3 << 20, 6));
}
