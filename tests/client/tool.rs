//! `basin cp` and the others, as people call them.

use std::ffi::OsStr;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use super::proxy::{Evil, Proxy};
use super::server::{Signals, free_address};
use super::{KEY, SECRET, Server, both, curl, curl_gets, curl_puts, pattern, server};

fn command(endpoints: &str, place: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command.args(["100", env!("CARGO_BIN_EXE_basin")]).args(arguments).current_dir(place).stdin(Stdio::null());
    command.env("BASIN_ENDPOINT", endpoints).env("AWS_ACCESS_KEY_ID", KEY).env("AWS_SECRET_ACCESS_KEY", SECRET);
    command.env_remove("BASIN_CREDENTIALS");
    command
}

fn basin(endpoints: &str, place: &Path, arguments: &[&str]) -> Output {
    command(endpoints, place, arguments).output().unwrap()
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
    // What is there already stays as it is, at either end, and is not sent.
    std::fs::remove_file(place.join("to/deep/ü")).unwrap();
    std::fs::write(place.join("to/a b"), b"mine").unwrap();
    let line = done(&server, &["cp", "-r", "--no-clobber", "s3://tree/under", "to"]);
    assert!(line.starts_with("1 object, 5 B in ") && line.ends_with("; 2 more there already\n"), "{line}");
    assert_eq!(std::fs::read(place.join("to/a b")).unwrap(), b"mine");
    std::fs::write(place.join("from/deep/new"), b"new").unwrap();
    std::fs::write(place.join("from/deep/ü"), b"other").unwrap();
    let line = done(&server, &["cp", "-r", "--no-clobber", "from", "s3://tree/under"]);
    assert!(line.starts_with("1 object, 3 B in ") && line.ends_with("; 3 more there already\n"), "{line}");
    assert_eq!(basin(&both(&server).join(","), &place, &["cat", "s3://tree/under/deep/ü"]).stdout, content[..5]);
    done(&server, &["rm", "s3://tree/under/deep/new"]);
    let line = done(&server, &["cp", "s3://tree/under/deep/er/long", "to/"]);
    assert!(line.starts_with("1 object, 9 MiB in ") && line.ends_with("by rdma soft:shm\n"), "{line}");
    assert!(std::fs::read(place.join("to/long")).unwrap() == content);
    done(&server, &["cp", "-r", "s3://tree/under/deep", "s3://tree/copy"]);
    let line = done(&server, &["cp", "-r", "--no-clobber", "s3://tree/under/deep", "s3://tree/copy"]);
    assert!(line.starts_with("0 objects, ") && line.ends_with("; 2 more there already\n"), "{line}");
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
    let nothing = basin(&both(&server).join(","), &place, &["ls", "s3://tree/copi"]);
    let said = String::from_utf8_lossy(&nothing.stderr);
    assert!(nothing.status.success() && nothing.stdout.is_empty(), "{said}");
    assert!(said == "basin: nothing is there whose name begins with s3://tree/copi\n", "{said}");
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
    std::fs::create_dir(place.join("one")).unwrap();
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
        (
            &["cp", "-r", "s3://there/no", "out"],
            1,
            "nothing whose name begins with s3://there/no/\n  to mend it: see what is there: basin ls",
        ),
        (&["cp", "--no-clobber", "file", "s3://there/one"], 1, "s3://there/one is there already"),
        // Whether it is there is asked before the file is read.
        (&["cp", "--no-clobber", "nofile", "s3://there/one"], 1, "s3://there/one is there already"),
        (&["cp", "--no-clobber", "s3://there/a/../b", "s3://there/one"], 1, "s3://there/one is there already"),
        (&["cp", "--no-clobber", "s3://there/one", "file"], 1, "file is there already"),
        (&["cp", "--no-clobber", "s3://there/one", "-"], 2, "--no-clobber: standard output"),
        (&["cp", "--content-type", "a/b", "s3://there/one", "s3://there/two"], 2, "--content-type: a copy by the server"),
        (&["cp", "--content-type", "a/b", "s3://there/one", "x"], 2, "--content-type: a file has none"),
        (&["cp", "--sse", "AES256", "s3://there/one", "x"], 2, "--sse: it is for what is put or copied"),
        (&["cp", "s3://there/one", "."], 2, "one is a directory"),
        (&["ls", "--endpoint", "ftp://x"], 2, "'ftp://x' is no endpoint"),
        (&["ls", "--rdma", "off", "--credentials", "file"], 2, "file: there are no access_key and secret_key in it"),
        (&["stat", "s3://there/one", "--credentials", "nofile"], 2, "nofile"),
        (&["cp", "-r", "-", "s3://there/x"], 2, "several objects from standard input"),
        (&["ls", "--ca", "one.pem"], 2, "--ca one.pem with endpoints of which none is https://"),
        (&["ls", "--access-key", "NOBODY"], 1, "to mend it: check the access key"),
        (&["ls", "--secret-key", "wrong"], 1, "to mend it: check the secret"),
    ] {
        refused(&all, &place, arguments, code, said);
    }
    assert!(!place.join("out").exists() && !place.join("x").exists());
    let free = free_address();
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

#[test]
fn what_is_there_and_no_file_is_written_into() {
    let server = server();
    let place = server.place.path().to_path_buf();
    done(&server, &["mb", "s3://into"]);
    let content = pattern(1 << 20, 7);
    curl_puts(&server, "/into/k", &content);
    // Devices of our own: a tool that fails this is not to replace the machine's.
    let make =
        |name: &str, minor: &str| Command::new("mknod").args([name, "c", "1", minor]).current_dir(&place).status().unwrap().success();
    if make("null", "3") && make("full", "7") {
        done(&server, &["cp", "s3://into/k", "null"]);
        assert!(std::fs::metadata(place.join("null")).unwrap().file_type().is_char_device());
        refused(&both(&server).join(","), &place, &["cp", "s3://into/k", "full"], 1, "writing full: ENOSPC");
        assert!(std::fs::metadata(place.join("full")).unwrap().file_type().is_char_device());
    } else {
        eprintln!("SKIPPED: copies to devices: this user may make none (mknod)");
    }
    // The reader of a FIFO gets the bytes, whoever comes first; and what is written to one is put.
    assert!(Command::new("mkfifo").args(["-m", "600", "fifo"]).current_dir(&place).status().unwrap().success());
    for is_first in [true, false] {
        let mut copy = command(&both(&server).join(","), &place, &["cp", "-q", "s3://into/k", "fifo"]).spawn().unwrap();
        if is_first {
            std::thread::sleep(Duration::from_millis(500));
        }
        assert!(std::fs::read(place.join("fifo")).unwrap() == content);
        assert!(copy.wait().unwrap().success());
        let mut copy = command(&both(&server).join(","), &place, &["cp", "-q", "fifo", "s3://into/of-fifo"]).spawn().unwrap();
        std::fs::write(place.join("fifo"), &content[is_first.into()..]).unwrap();
        assert!(copy.wait().unwrap().success());
        assert!(curl_gets(&server, "/into/of-fifo") == content[is_first.into()..]);
    }
    assert!(std::fs::symlink_metadata(place.join("fifo")).unwrap().file_type().is_fifo());
    // A link stays, and the file that it names has its mode.
    std::fs::create_dir(place.join("dir")).unwrap();
    std::fs::write(place.join("dir/real"), b"old").unwrap();
    std::fs::set_permissions(place.join("dir/real"), std::fs::Permissions::from_mode(0o640)).unwrap();
    symlink("dir/real", place.join("link")).unwrap();
    done(&server, &["cp", "s3://into/k", "link"]);
    assert_eq!(std::fs::read_link(place.join("link")).unwrap(), Path::new("dir/real"));
    assert!(std::fs::read(place.join("dir/real")).unwrap() == content);
    assert_eq!(std::fs::metadata(place.join("dir/real")).unwrap().mode() & 0o777, 0o640);
    assert_eq!(std::fs::read_dir(place.join("dir")).unwrap().count(), 1);
    symlink("nowhere", place.join("dangling")).unwrap();
    refused(&both(&server).join(","), &place, &["cp", "s3://into/k", "dangling"], 2, "dangling: a link to what is not there");
    done(&server, &["cp", "--no-clobber", "s3://into/k", "new"]);
    assert!(std::fs::read(place.join("new")).unwrap() == content);
    // Standard input that comes slowly.
    let script = "(printf ab; sleep 0.3; printf c) | \"$0\" cp -q - s3://into/slow";
    let mut slow = command(&both(&server).join(","), &place, &[]);
    slow = {
        let mut shell = Command::new("sh");
        shell.args(["-c", script, env!("CARGO_BIN_EXE_basin")]).current_dir(&place);
        shell.envs(slow.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    };
    assert!(slow.status().unwrap().success());
    assert_eq!(curl_gets(&server, "/into/slow"), b"abc");
}

#[test]
fn the_bar_of_a_tree_knows_all_of_it() {
    let server = server();
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    done(&server, &["mb", "s3://bar"]);
    std::fs::create_dir(place.join("tree")).unwrap();
    for name in ["one", "two", "three", "four", "five", "six"] {
        std::fs::write(place.join("tree").join(name), vec![7; 4 << 20]).unwrap();
    }
    for (from, to) in [("tree", "s3://bar/tree"), ("s3://bar/tree", "back"), ("s3://bar/tree", "s3://bar/copy")] {
        let asked = command(&all, &place, &["cp", "-r", from, to]);
        let words: Vec<_> = [asked.get_program()].into_iter().chain(asked.get_args()).map(|word| word.to_str().unwrap()).collect();
        let mut terminal = Command::new("script");
        terminal.args(["-qec", &words.join(" "), "/dev/null"]).current_dir(&place);
        terminal.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let output = terminal.output().unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && shown.contains("6 objects, 24 MiB in "), "{output:?}");
        // `11.00 MiB/24.00 MiB`, and beside it a rate, `GiB/s`.
        let totals: Vec<&str> = shown.split("B/").skip(1).filter(|rest| !rest.starts_with('s')).collect();
        assert!(!totals.is_empty() && totals.iter().all(|total| total.starts_with("24.00 MiB")), "{shown:?}");
    }
}

#[test]
fn one_that_cannot_be_copied_does_not_keep_the_others_from_it() {
    let server = server();
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    done(&server, &["mb", "s3://some"]);
    std::fs::write(place.join("file"), b"file").unwrap();
    for key in ["p/x", "p//x", "p/a//b", "p/../up", "p/deep/y", "p/esc\u{1b}[31m\"it's\""] {
        done(&server, &["cp", "file", &format!("s3://some/{key}")]);
    }
    let output = basin(&all, &place, &["cp", "-r", "s3://some/p", "out"]);
    let (told, line) = (String::from_utf8_lossy(&output.stderr), String::from_utf8_lossy(&output.stdout));
    assert!(output.status.code() == Some(1) && line.starts_with("3 objects, "), "{told}{line}");
    for key in ["p//x", "p/a//b", "p/../up"] {
        assert_eq!(told.matches(&format!("s3://some/{key}: no file below out can have that name")).count(), 1, "{told}");
    }
    assert!(told.ends_with("basin: not copied: 3 of 6\n"), "{told}");
    assert_eq!(std::fs::read(place.join("out/x")).unwrap(), b"file");
    assert_eq!(std::fs::read(place.join("out/deep/y")).unwrap(), b"file");
    // One key is the file, whichever is copied first.
    for key in ["q/a", "q/a/b", "q/a-c", "q/a/d/e"] {
        done(&server, &["cp", "file", &format!("s3://some/{key}")]);
    }
    let output = basin(&all, &place, &["cp", "-r", "s3://some/q", "q"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.ends_with("basin: not copied: 2 of 4\n"), "{told}");
    for key in ["q/a/b", "q/a/d/e"] {
        assert_eq!(told.matches(&format!("s3://some/{key}: no file below q/a, which is an object's own")).count(), 1, "{told}");
    }
    assert!(["q/a", "q/a-c"].iter().all(|name| std::fs::read(place.join(name)).unwrap() == b"file"));
    // A directory in the place of a file is none, and no object that was copied.
    std::fs::create_dir_all(place.join("r/a")).unwrap();
    done(&server, &["cp", "file", "s3://some/r/a"]);
    let output = basin(&all, &place, &["cp", "-r", "--no-clobber", "s3://some/r", "r"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.contains("r/a") && told.contains("directory"), "{told}");
    // Names are shown so that no terminal heeds them; quotes are themselves.
    let shown = "p/esc\\u{1b}[31m\"it's\"";
    assert!(done(&server, &["ls", "-r", "s3://some"]).contains(&format!("  {shown}\n")));
    assert!(done(&server, &["stat", "s3://some/p/esc\u{1b}[31m\"it's\""]).contains(&format!("s3://some/{shown}\n")));
    let output = basin(&all, &place, &["stat", "s3://some/no\u{1b}[31m"]);
    assert!(!output.stderr.contains(&0x1b) && output.status.code() == Some(3), "{output:?}");
    // Of a directory.
    std::fs::create_dir_all(place.join("tree/sub")).unwrap();
    for name in ["tree/one", "tree/sub/two"] {
        std::fs::write(place.join(name), name).unwrap();
    }
    std::fs::write(place.join("tree").join(OsStr::from_bytes(b"bad\xff")), b"bad").unwrap();
    symlink("nowhere", place.join("tree/broken")).unwrap();
    symlink("sub", place.join("tree/circle")).unwrap();
    assert!(Command::new("mkfifo").arg("tree/fifo").current_dir(&place).status().unwrap().success());
    let output = basin(&all, &place, &["cp", "-r", "tree", "s3://some/up"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && told.ends_with("basin: not copied: 3 of 5\n"), "{told}");
    for said in [
        "tree/bad\u{fffd}: it has no name",
        "tree/broken: ENOENT",
        "tree/circle: a link to a directory",
        "tree/fifo is left out: it is a FIFO",
    ] {
        assert_eq!(told.matches(said).count(), 1, "{said}: {told}");
    }
    assert_eq!(done(&server, &["ls", "-r", "s3://some/up"]).lines().count(), 2);
    // A FIFO alone is no loss.
    std::fs::create_dir(place.join("fifos")).unwrap();
    assert!(Command::new("mkfifo").arg("fifos/one").current_dir(&place).status().unwrap().success());
    assert!(done(&server, &["cp", "-r", "fifos", "s3://some/fifos"]).starts_with("0 objects, "));
    let output = basin(&all, &place, &["rm", "-r", "s3://some/fifos"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told == "basin: nothing was there whose name begins with s3://some/fifos\n", "{told}");
}

#[test]
fn who_may_put_and_not_look_copies_what_is_missing() {
    let account = r#""account": "111111111111""#;
    let writes = r#"{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:PutObject", "Resource": "*"}]}"#;
    let root = format!(r#"{{"name": "root", {account}, "access_keys": [{{"access_key": "{KEY}", "secret_key": "{SECRET}"}}]}}"#);
    let keys = r#""access_keys": [{"access_key": "KEYOFWRITER", "secret_key": "the secret of the writer"}]"#;
    let users = format!(r#"[{root}, {{"name": "writer", {account}, {keys}, "policies": [{writes}]}}]"#);
    let server = Server::start_at(1, "1G", "soft", &[("BASIN_USERS", &users)]);
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    std::fs::create_dir(place.join("tree")).unwrap();
    for name in ["one", "two"] {
        std::fs::write(place.join("tree").join(name), name).unwrap();
    }
    done(&server, &["mb", "s3://drop"]);
    done(&server, &["cp", "tree/one", "s3://drop/one"]);
    std::fs::write(place.join("tree/one"), b"another").unwrap();
    let writer = ["--access-key", "KEYOFWRITER", "--secret-key", "the secret of the writer"];
    let refused = basin(&all, &place, &[&["stat", "s3://drop/one"][..], &writer].concat());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("403"), "{refused:?}");
    let output = basin(&all, &place, &[&["cp", "-r", "--no-clobber", "tree", "s3://drop"][..], &writer].concat());
    let line = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && line.starts_with("1 object, ") && line.ends_with("; 1 more there already\n"), "{output:?}");
    for name in ["one", "two"] {
        assert_eq!(basin(&all, &place, &["cat", &format!("s3://drop/{name}")]).stdout, name.as_bytes());
    }
    // What was read of files that were not put is not counted.
    let output = basin(&all, &place, &["cp", "-r", "tree", "s3://drop", "--access-key", "NOBODY"]);
    assert!(output.status.code() == Some(1) && output.stdout.starts_with(b"0 objects, 0 B in "), "{output:?}");
}

#[test]
fn an_input_that_is_closed_is_no_object_and_an_output_has_none() {
    let server = server();
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    done(&server, &["mb", "s3://input"]);
    let run = |arguments: &[&str], with: &str| {
        let asked = command(&all, &place, arguments);
        let mut shell = Command::new("bash");
        shell.args(["-c", &format!("exec \"$0\" \"$@\" {with}")]).arg(asked.get_program()).args(asked.get_args()).current_dir(&place);
        shell.envs(asked.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell.output().unwrap()
    };
    let put = |from: &str| run(&["cp", "-", "s3://input/one"], from);
    let output = put("<&-");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("standard input is closed"), "{output:?}");
    assert_eq!(done(&server, &["ls", "s3://input"]), "");
    assert!(put("</dev/null").status.success());
    assert!(done(&server, &["stat", "s3://input/one"]).contains("bytes      0 (0 B)\n"));
    for arguments in [&["cat", "s3://input/one"][..], &["cp", "s3://input/one", "-"]] {
        let output = run(arguments, ">&-");
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("standard output is closed"), "{output:?}");
        assert!(run(arguments, ">/dev/null").status.success());
    }
}

#[test]
fn what_cannot_be_printed_is_an_error_and_a_reader_may_go() {
    let server = server();
    let (all, place) = (both(&server).join(","), server.place.path().to_path_buf());
    done(&server, &["mb", "s3://print"]);
    std::fs::write(place.join("file"), b"file").unwrap();
    done(&server, &["cp", "file", "s3://print/one"]);
    let config = place.join("basin.toml");
    for arguments in [
        &["ls"][..],
        &["ls", "-r", "s3://print"],
        &["stat", "s3://print/one"],
        &["stat", "--json", "s3://print/one"],
        &["cat", "s3://print/one"],
        &["cp", "file", "s3://print/one"],
        &["config", "check", "--config", config.to_str().unwrap()],
        &["selftest", "--list"],
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = command(&all, &place, arguments).stdout(full).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains("writing to standard output: ENOSPC"), "{arguments:?}: {told}");
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command(&all, &place, arguments).stdout(writer).stderr(Stdio::piped()).spawn().unwrap().wait_with_output().unwrap();
        // What of an object was not read is not verified.
        let code = if arguments[0] == "cat" { 141 } else { 0 };
        assert!(output.status.code() == Some(code) && output.stderr.is_empty(), "{arguments:?}: {output:?}");
    }
    // One form of time.
    let time = |arguments: &[&str]| {
        let told: serde_json::Value = serde_json::from_str(&done(&server, arguments)).unwrap();
        told["modified"].as_str().unwrap().to_owned()
    };
    let (listed, told) = (time(&["ls", "--json", "s3://print/"]), time(&["stat", "--json", "s3://print/one"]));
    assert!(told.ends_with("Z") && told[..19] == listed[..19], "{told} {listed}");
}

#[test]
fn a_variable_that_is_empty_says_nothing() {
    let server = server();
    let place = server.place.path().to_path_buf();
    done(&server, &["mb", "s3://empty"]);
    let credentials = format!("access_key = \"{KEY}\"\nsecret_key = \"{SECRET}\"\n");
    std::fs::create_dir(place.join("basin-data")).unwrap();
    std::fs::write(place.join("basin-data/store.img.credentials"), credentials).unwrap();
    let endpoint = both(&server)[1].clone();
    let nothing =
        ["BASIN_ENDPOINT", "BASIN_CREDENTIALS", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "BASIN_RDMA_INTERFACE"];
    for arguments in
        [&["ls", "--endpoint", &endpoint][..], &["bench", "s3", &endpoint, "--seconds", "1", "--objects", "2", "--clients", "1"]]
    {
        let output = command("", &place, arguments).envs(nothing.map(|name| (name, ""))).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    let output = command("", &place, &["ls", "--endpoint", &endpoint]).env("AWS_SECRET_ACCESS_KEY", "").output().unwrap();
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("without its secret"), "{output:?}");
    for (endpoint, code, said) in
        [("https://127.0.0.1", 2, "no load goes by TLS"), ("ftp://127.0.0.1", 2, "no such load"), ("http://127.0.0.1", 1, "127.0.0.1:80")]
    {
        let output = command("", &place, &["bench", "s3", endpoint]).output().unwrap();
        assert!(output.status.code() == Some(code) && String::from_utf8_lossy(&output.stderr).contains(said), "{output:?}");
    }
}

#[test]
fn a_copy_says_why_it_did_not_go_by_rdma() {
    let server = server();
    let place = server.place.path().to_path_buf();
    done(&server, &["mb", "s3://why"]);
    std::fs::write(place.join("file"), b"file").unwrap();
    let free = free_address();
    let endpoints = format!("rdma://{free},{}", both(&server)[1]);
    let output = command(&endpoints, &place, &["cp", "file", "s3://why/k"]).env("RUST_LOG", "basin=debug").output().unwrap();
    let line = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && line.contains(&format!(", by http (rdma://{free}: ")) && line.contains("ECONNREFUSED"), "{line}");
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(log.contains("DEBUG") && log.contains("RDMA rests"), "{log}");
}

#[test]
fn a_signal_leaves_nothing_half_way() {
    let server = server();
    let place = server.place.path().join("dir");
    std::fs::create_dir(&place).unwrap();
    done(&server, &["mb", "s3://halves"]);
    curl_puts(&server, "/halves/long", &pattern(20 << 20, 8));
    let all = both(&server).join(",");
    // A file of which a piece does not come, however long it is waited for.
    let proxy = Proxy::begin(server.address, Evil::HoldAnswers(200_000));
    let begun = |endpoints: &str, arguments: &[&str], stdin: Stdio| {
        let mut command = command(endpoints, &place, arguments);
        // Not by timeout, which would have the signal.
        let mut basin = Command::new(env!("CARGO_BIN_EXE_basin"));
        basin.args(arguments).current_dir(&place).envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command = basin;
        command.stdin(stdin).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ended = |child: std::process::Child, signal: &str| {
        Signals { pid: child.id() }.send(signal);
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(130) && told.contains("stopped by a signal"), "{output:?}");
    };
    let wait_for = |what: &str, is: &dyn Fn() -> bool| {
        let begun = Instant::now();
        while !is() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let child = begun(&proxy.endpoint(), &["cp", "s3://halves/long", "file"], Stdio::null());
    wait_for("a part of a file", &|| std::fs::read_dir(&place).unwrap().count() == 1);
    ended(child, "TERM");
    assert_eq!(std::fs::read_dir(&place).unwrap().count(), 0);
    // An object of which not all comes.
    let uploads = || String::from_utf8(curl_gets(&server, "/halves?uploads=")).unwrap().matches("<UploadId>").count();
    let mut child = begun(&all, &["cp", "-", "s3://halves/new"], Stdio::piped());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&pattern(17 << 20, 9)).unwrap();
    wait_for("an upload in parts", &|| uploads() == 1);
    ended(child, "INT");
    assert_eq!(uploads(), 0);
    drop(input);
    // A server that is gone: it is not waited for long, also where there is no room for more, and what is left is said.
    let mut child = begun(&all, &["cp", "-", "s3://halves/gone"], Stdio::piped());
    let mut input = child.stdin.take().unwrap();
    input.write_all(&pattern(17 << 20, 9)).unwrap();
    wait_for("an upload in parts", &|| uploads() == 1);
    server.signals().send("KILL");
    let more = std::thread::spawn(move || input.write_all(&pattern(200 << 20, 9)).is_err());
    std::thread::sleep(Duration::from_secs(1));
    let asked = Instant::now();
    Signals { pid: child.id() }.send("TERM");
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && told.contains("parts of s3://halves/gone may stay"), "{output:?}");
    assert!(asked.elapsed() < Duration::from_secs(30), "it took {:?}", asked.elapsed());
    assert!(more.join().unwrap(), "all was read");
}

/// A server that is stopped holds up a copy wherever that waits for it.
#[test]
fn what_happens_meanwhile_is_said() {
    let server = server();
    let place = server.place.path().to_path_buf();
    done(&server, &["mb", "s3://while"]);
    std::fs::write(place.join("file"), pattern(40 << 20, 3)).unwrap();
    let over_http = both(&server)[1].clone();
    let begun = |name: &str| {
        let mut child = Command::new(env!("CARGO_BIN_EXE_basin"));
        child.args(["cp", "file", &format!("s3://while/{name}")]).current_dir(&place).stdin(Stdio::null()).stderr(Stdio::piped());
        let like = command(&over_http, &place, &[]);
        child.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?)))).spawn().unwrap()
    };
    // It has read the first part, and asks for an upload then.
    let wait_for_a_part = |child: &std::process::Child| {
        let begun = Instant::now();
        let read = || {
            let told = std::fs::read_to_string(format!("/proc/{}/io", child.id())).unwrap();
            told.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse::<u64>().unwrap()
        };
        while read() < 8 << 20 {
            assert!(begun.elapsed() < Duration::from_secs(60), "it reads nothing");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    let uploads = || String::from_utf8(curl_gets(&server, "/while?uploads=")).unwrap().matches("<UploadId>").count();
    for change in [|file: &mut std::fs::File| file.write_all(b"other").unwrap(), |file: &mut std::fs::File| file.set_len(9 << 20).unwrap()]
    {
        server.signals().send("STOP");
        let child = begun("changed");
        wait_for_a_part(&child);
        change(&mut std::fs::File::options().write(true).open(place.join("file")).unwrap());
        server.signals().send("CONT");
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(1) && told.contains("file: it was changed while it was read"), "{output:?}");
        assert_eq!(uploads(), 0);
        refused(&over_http, &place, &["stat", "s3://while/changed"], 3, "NoSuchKey");
        std::fs::write(place.join("file"), pattern(40 << 20, 3)).unwrap();
    }
    // An upload that is asked for has no name yet by which it could be removed.
    server.signals().send("STOP");
    let child = begun("unnamed");
    wait_for_a_part(&child);
    Signals { pid: child.id() }.send("TERM");
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(130) && told.contains("parts of s3://while/unnamed may stay"), "{output:?}");
    server.signals().send("CONT");
    // What is the same with all of a tree is said once, and what is in a name is no line of its own.
    std::fs::create_dir(place.join("tree")).unwrap();
    for name in ["1", "2", "3", "4", "5", "6", "a\nbasin: forged"] {
        std::fs::write(place.join("tree").join(name), name).unwrap();
    }
    let output = basin(&over_http, &place, &["cp", "-r", "tree", "s3://nowhere"]);
    let told = String::from_utf8_lossy(&output.stderr);
    let lines = told.lines().filter(|line| line.starts_with("basin: ")).count();
    assert!(output.status.code() == Some(3) && lines == 1 && told.contains("NoSuchBucket"), "{output:?}");
    assert!(done(&server, &["cp", "-r", "tree", "s3://while/tree"]).starts_with("7 objects, "));
    let output = basin(&over_http, &place, &["cp", "tree/a\nbasin: forged", "s3://nowhere/"]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(told.contains("a\\nbasin: forged") && !told.contains("\nbasin: forged"), "{told}");
    assert_eq!(done(&server, &["rm", "-r", "s3://while/tree/"]), "7 objects removed\n");
}

#[test]
fn a_bucket_of_which_versions_are_left_is_said_to_have_them() {
    let server = server();
    let place = server.place.path().to_path_buf();
    std::fs::write(place.join("file"), b"file").unwrap();
    done(&server, &["mb", "s3://versions"]);
    let status = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    let set = curl(&server, &["-X", "PUT", "--data-binary", status], "/versions?versioning=");
    assert!(set.status.success(), "{}", String::from_utf8_lossy(&set.stdout));
    done(&server, &["cp", "file", "s3://versions/k"]);
    let all = both(&server).join(",");
    refused(&all, &place, &["rb", "s3://versions"], 1, "basin rm -r s3://versions");
    assert_eq!(done(&server, &["rm", "-r", "s3://versions"]), "1 object removed\n");
    refused(&all, &place, &["rb", "s3://versions"], 1, "aws s3api list-object-versions --bucket versions");
}
