//! Everything that is told, put together.

use std::sync::Arc;

use tracing_appender::non_blocking::ErrorCounter;

use super::counters::{BOUNDS, CLASSES, Counter, Counters, Kind};
use super::text::{Family, Page, Type};
use crate::device::rdma::Refusals;
use crate::mem::Census;
use crate::s3::error::Code;
use crate::s3::http::tls::identity::Identity;
use crate::store::failure::Outcome;
use crate::store::open::Store;
use crate::store::watch::Sample;
use crate::wire::store::superblock::Durability;

/// Of an operation that there was: how many failed is told before one does, so that the first is seen as a change.
const ALWAYS_TOLD: [&str; 1] = ["5xx"];
/// Codes of faults of the server's, and of its lack of room: they are always told, for the same reason.
const ALWAYS_TOLD_CODES: [Code; 3] = [Code::InternalError, Code::SlowDown, Code::InsufficientStorage];

/// What a page is made of, but for what the store tells.
pub struct Sources {
    /// Of each core.
    pub counters: Arc<[Arc<Counters>]>,
    /// Lines of the log that were left out.
    pub dropped: ErrorCounter,
    /// When the server began, seconds since 1970 (UTC).
    pub began_s: f64,
    /// Who the server says it is, if it serves HTTPS.
    pub identity: Option<Arc<Identity>>,
}

macro_rules! families {
    ($($constant:ident $kind:ident $name:literal $help:literal;)*) => {
        $(const $constant: Family = Family { name: $name, kind: Type::$kind, help: $help };)*

        /// All families.
        pub const FAMILIES: &[Family] = &[$($constant),*];
    };
}

families! {
    BUILD_INFO Gauge "basin_build_info" "1, with the version of the program.";
    START_TIME Gauge "process_start_time_seconds" "When the server began, in seconds since 1970.";
    CPU Counter "process_cpu_seconds_total" "Time of processors that the process took, user and system.";
    RESIDENT Gauge "process_resident_memory_bytes" "Memory of the process that is there; huge pages are not counted.";
    REQUESTS Counter "basin_s3_requests_total" "Requests answered, by operation and class of status.";
    DURATION Histogram "basin_s3_request_duration_seconds"
        "From the head of a request to the last byte of its answer handed to the kernel.";
    RECEIVED Counter "basin_s3_received_bytes_total" "Bytes of the bodies of requests, without their framing.";
    SENT Counter "basin_s3_sent_bytes_total" "Bytes of the bodies of answers.";
    ERRORS Counter "basin_s3_errors_total" "Errors answered, by S3's code.";
    REFUSED Counter "basin_s3_auth_failures_total" "Requests whose sender could not be verified, or may not do it, by S3's code.";
    UNDER_WAY Gauge "basin_s3_requests_under_way" "Requests whose head has come and whose answer is not sent.";
    BROKEN Counter "basin_s3_broken_answers_total" "Answers of which not all could be sent: the client went, or the object is damaged.";
    KNOWN Counter "basin_s3_known_answers_total" "Answers over RDMA that were known: the same was asked before, and holds.";
    ALIKE Counter "basin_s3_alike_puts_total"
        "Puts over RDMA on which nothing had to be decided: one like them was done before, and that holds.";
    PLACES Counter "basin_s3_rdma_requests_total"
        "Requests of RDMA's native mode for an object, by whose it is: the session's own core's, or another's that they were passed to.";
    MESSAGES Counter "basin_s3_rdma_messages_total" "Messages of the native mode, by way.";
    FRAMES Counter "basin_s3_rdma_frames_total" "Requests received and answers sent in them.";
    RDMA_REFUSED Counter "basin_rdma_refused_total"
        "Packets over RDMA that were refused: memory that is not granted, a queue pair that is another's or none, damaged.";
    CONNECTIONS Gauge "basin_http_connections" "Connections that are open.";
    CONNECTIONS_MAX Gauge "basin_http_connections_max" "Connections that there may be.";
    ACCEPTED Counter "basin_http_connections_accepted_total" "Connections that were accepted.";
    TURNED_AWAY Counter "basin_http_connections_refused_total"
        "Times that a connection was closed at once, or could not be accepted: no task or descriptor was left.";
    HELD Counter "basin_http_accept_pauses_total"
        "Times that nobody was accepted for 50 ms, because there were as many connections as are allowed.";
    HANDSHAKES Counter "basin_tls_handshakes_total" "Handshakes of TLS that were made.";
    CERTIFICATE_ENDS Gauge "basin_tls_certificate_not_after_seconds"
        "When the first certificate of the chain that serves ends, in seconds since 1970; without HTTPS not there.";
    FAILED_HANDSHAKES Counter "basin_tls_handshake_failures_total" "Handshakes of TLS that were begun and not made.";
    CAPACITY Gauge "basin_store_capacity_bytes" "Bytes of all segments.";
    NEEDED Gauge "basin_store_needed_bytes" "Bytes of what is needed: objects, and what belongs to them.";
    FREE Gauge "basin_store_free_bytes" "Bytes of free segments. What is neither free nor needed is made free when it is wanted.";
    RESERVED Gauge "basin_store_reserved_bytes" "Bytes that puts leave free.";
    BUCKETS Gauge "basin_store_buckets" "Buckets.";
    VERSIONS Gauge "basin_store_versions" "Versions of objects, delete markers too.";
    INDEX Gauge "basin_store_index_bytes" "Bytes of memory of the index.";
    TOMBSTONES Gauge "basin_store_tombstones" "Deletions that may have something left to end on the device.";
    WRITES Counter "basin_store_log_writes_total"
        "Writes of the log, by when they are answered: flush, once the device says that they are stable.";
    FAILED_WRITES Counter "basin_store_log_write_errors_total" "Writes of the log that the device failed.";
    FAILED_CHECKPOINTS Counter "basin_store_checkpoint_errors_total" "Checkpoints that failed, but for want of room.";
    WRITTEN Counter "basin_store_written_bytes_total" "Bytes written to the device: items, copies of compaction, headers, checkpoints.";
    ITEMS Counter "basin_store_item_bytes_total" "Bytes of new items among them.";
    COMPACTED Counter "basin_store_compacted_segments_total" "Segments that compaction emptied.";
    KEPT Counter "basin_store_compaction_failures_total" "Segments that compaction could not empty.";
    MOVED Counter "basin_store_compaction_copied_bytes_total" "Bytes of items that compaction copied.";
    DISCARDED Counter "basin_store_discarded_bytes_total" "Bytes of freed segments that the device was told of.";
    DAMAGED Gauge "basin_store_damaged_segments"
        "Segments that the medium cannot give back (unreadable), or whose header has rotted (lost).";
    DAMAGED_READS Counter "basin_store_damaged_reads_total" "Reads of objects that found something else than was written.";
    MISSING Gauge "basin_store_missing_extents" "Extents that objects name and nobody found when the store was opened.";
    OPENING Gauge "basin_store_open_seconds" "How long opening the store took.";
    HITS Counter "basin_cache_hits_total" "Reads of items that the cache had.";
    MISSES Counter "basin_cache_misses_total" "Reads of items that it had not.";
    CACHED_ITEMS Gauge "basin_cache_items" "Items that are in the cache.";
    CACHED_BYTES Gauge "basin_cache_bytes" "Bytes of memory that they take.";
    COPIED Counter "basin_copied_bytes_total"
        "Payload copied by CPU in user space: front, between sockets and chunks; tls, each pass over it; store, before writes; \
        rdma, by a soft device; bounce, with rdma.enable_zero_copy off.";
    CHUNKS Gauge "basin_chunks" "Chunks of memory, by core, what they are for, and who owns them.";
    CHUNK_BYTES Gauge "basin_chunk_bytes" "Bytes of a chunk.";
    REGION Gauge "basin_region_bytes" "Bytes of the memory region, by the pages it got.";
    TURNS Counter "basin_core_turns_total" "Turns of a core's loop.";
    SLEEPS Counter "basin_core_sleeps_total" "Times a core slept.";
    NEAR_SLEEPS Counter "basin_core_near_sleeps_total" "Times a core found something when it was about to sleep.";
    PANICS Counter "basin_core_panics_total" "Tasks and destructors that panicked. A bug of Basin's.";
    TASKS Gauge "basin_core_tasks" "Tasks of a core that have not ended.";
    TASKS_MAX Gauge "basin_core_tasks_max" "Tasks that it may have.";
    OPERATIONS Gauge "basin_core_operations" "Operations of a core that are in flight.";
    OPERATIONS_MAX Gauge "basin_core_operations_max" "Operations that may be.";
    FAULTS Counter "basin_core_completion_faults_total"
        "Completions of a device that named no operation in flight. A bug of Basin's or the device's.";
    LOG_DROPPED Counter "basin_log_dropped_lines_total" "Lines of the log that were left out, because nobody read fast enough.";
}

/// What the process took of the machine: seconds of processors, and bytes of memory that are there.
fn process() -> (f64, u64) {
    let seconds = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).map_or(0.0, |usage| {
        let both = usage.user_time() + usage.system_time();
        both.tv_sec() as f64 + both.tv_usec() as f64 / 1e6
    });
    // Of the kernel's making: no disk is read.
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?.parse().ok());
    (seconds, resident.unwrap_or(0u64) * 1024)
}

impl Sources {
    /// The page as of now.
    ///
    /// # Errors
    /// A core of the store has ended.
    pub async fn page(&self, store: &Store, connections_max: usize) -> Outcome<String> {
        let samples = store.sample().await?;
        let mut page = Page::default();
        page.begin(&BUILD_INFO);
        page.number(&BUILD_INFO, "", &[("version", env!("CARGO_PKG_VERSION"))], 1u64.into());
        let (cpu_seconds, resident) = process();
        page.one(&START_TIME, self.began_s);
        page.one(&CPU, cpu_seconds);
        page.one(&RESIDENT, resident);
        page.one(&LOG_DROPPED, self.dropped.dropped_lines() as u64);
        self.of_requests(&mut page);
        self.of_rdma(&mut page);
        self.of_connections(&mut page, connections_max);
        of_store(&mut page, store, &samples);
        let (front, tls) = (self.sum(|counters| &counters.copied), self.sum(|counters| &counters.tls_copied));
        let (rdma, bounce) = (self.sum(|counters| &counters.rdma_copied), self.sum(|counters| &counters.bounced));
        let store_copied = sum(&samples, |sample| sample.copied);
        let causes = [("front", front), ("tls", tls), ("store", store_copied), ("rdma", rdma), ("bounce", bounce)];
        page.each(&COPIED, "cause", causes);
        of_cores(&mut page, store, &samples);
        Ok(page.into_text())
    }

    fn sum(&self, of: impl Fn(&Counters) -> &Counter) -> u64 {
        self.counters.iter().map(|counters| of(counters).get()).sum()
    }

    /// Of requests that there were: a kind that never came is not told.
    fn of_requests(&self, page: &mut Page) {
        let of_kind = |kind: Kind, of: &dyn Fn(&super::counters::OfKind) -> u64| -> u64 {
            self.counters.iter().map(|counters| of(counters.of(kind))).sum()
        };
        let told: Vec<(Kind, [u64; CLASSES.len()])> = Kind::all()
            .map(|kind| (kind, std::array::from_fn(|class| of_kind(kind, &|one| one.answered[class].get()))))
            .filter(|(_, classes): &(_, [u64; CLASSES.len()])| classes.iter().any(|&count| count > 0))
            .collect();
        page.begin(&REQUESTS);
        for (kind, classes) in &told {
            for (&class, &count) in CLASSES.iter().zip(classes).filter(|&(class, &count)| count > 0 || ALWAYS_TOLD.contains(class)) {
                page.number(&REQUESTS, "", &[("operation", kind.name()), ("status", class)], count.into());
            }
        }
        page.begin(&DURATION);
        for &(kind, _) in &told {
            let operation = ("operation", kind.name());
            let mut count = 0;
            for (at, bound) in BOUNDS.iter().map(|(_, told)| *told).chain(["+Inf"]).enumerate() {
                count += of_kind(kind, &|one| one.buckets[at].get());
                page.number(&DURATION, "_bucket", &[operation, ("le", bound)], count.into());
            }
            let seconds = of_kind(kind, &|one| one.took_ns.get()) as f64 / 1e9;
            page.number(&DURATION, "_sum", &[operation], seconds.into());
            page.number(&DURATION, "_count", &[operation], count.into());
        }
        page.each(&RECEIVED, "operation", told.iter().map(|(kind, _)| (kind.name(), of_kind(*kind, &|one| one.received.get()))));
        page.each(&SENT, "operation", told.iter().map(|(kind, _)| (kind.name(), of_kind(*kind, &|one| one.sent.get()))));
        let by_code = |of: fn(&Counters, Code) -> u64| {
            let counts = Code::ALL.iter().map(move |&code| (code.name(), self.counters.iter().map(|counters| of(counters, code)).sum()));
            counts.filter(|&(code, count): &(_, u64)| count > 0 || ALWAYS_TOLD_CODES.iter().any(|told| told.name() == code))
        };
        page.each(&ERRORS, "code", by_code(Counters::errors_of));
        page.each(&REFUSED, "code", by_code(Counters::refusals_of).filter(|&(_, count)| count > 0));
        page.one(&UNDER_WAY, self.sum(|counters| &counters.under_way));
        page.one(&BROKEN, self.sum(|counters| &counters.broken));
        page.one(&KNOWN, self.sum(|counters| &counters.known));
        page.one(&ALIKE, self.sum(|counters| &counters.alike));
        let places = [("own", self.sum(|counters| &counters.own)), ("other", self.sum(|counters| &counters.passed_on))];
        page.each(&PLACES, "core", places);
        let (received, sent) = (self.sum(|counters| &counters.messages_received), self.sum(|counters| &counters.messages_sent));
        page.each(&MESSAGES, "way", [("received", received), ("sent", sent)]);
        let (received, sent) = (self.sum(|counters| &counters.frames_received), self.sum(|counters| &counters.frames_sent));
        page.each(&FRAMES, "way", [("received", received), ("sent", sent)]);
    }

    /// What the devices refused. A server without RDMA says 0.
    fn of_rdma(&self, page: &mut Page) {
        let sum = |of: fn(&Refusals) -> u64| self.counters.iter().filter_map(|counters| counters.rdma.get()).map(|core| of(core)).sum();
        let causes = [
            ("memory", sum(Refusals::memory)),
            ("stranger", sum(Refusals::strangers)),
            ("unknown", sum(Refusals::unknown)),
            ("damaged", sum(Refusals::damaged)),
        ];
        page.each(&RDMA_REFUSED, "cause", causes);
    }

    fn of_connections(&self, page: &mut Page, most: usize) {
        page.one(&CONNECTIONS, self.sum(|counters| &counters.connections));
        page.one(&CONNECTIONS_MAX, most as u64);
        page.one(&ACCEPTED, self.sum(|counters| &counters.accepted));
        page.one(&TURNED_AWAY, self.sum(|counters| &counters.turned_away));
        page.one(&HELD, self.sum(|counters| &counters.held));
        page.one(&HANDSHAKES, self.sum(|counters| &counters.handshakes));
        let ends_s = self.identity.as_ref().and_then(|identity| identity.ends_s());
        match ends_s {
            Some(ends_s) => page.one(&CERTIFICATE_ENDS, ends_s),
            None => page.begin(&CERTIFICATE_ENDS),
        }
        page.one(&FAILED_HANDSHAKES, self.sum(|counters| &counters.failed_handshakes));
    }
}

fn sum(samples: &[Sample], of: impl Fn(&Sample) -> u64) -> u64 {
    samples.iter().map(of).sum()
}

fn of_store(page: &mut Page, store: &Store, samples: &[Sample]) {
    let (usage, (unreadable, lost)) = (store.usage(), store.damaged_segments());
    page.one(&CAPACITY, usage.capacity);
    page.one(&NEEDED, usage.live);
    page.one(&FREE, usage.free);
    page.one(&RESERVED, store.engine().segments().kept());
    page.one(&BUCKETS, store.bucket_count() as u64);
    page.one(&VERSIONS, sum(samples, |sample| sample.versions));
    page.one(&INDEX, sum(samples, |sample| sample.index_bytes));
    page.one(&TOMBSTONES, sum(samples, |sample| sample.tombstones));
    let durability = match store.superblock().durability {
        Durability::Flush => "flush",
        Durability::DeviceCache => "device-cache",
    };
    page.each(&WRITES, "durability", [(durability, sum(samples, |sample| sample.traffic.writes))]);
    page.one(&FAILED_WRITES, sum(samples, |sample| sample.traffic.failed));
    page.one(&FAILED_CHECKPOINTS, sum(samples, |sample| sample.failed_checkpoints));
    page.one(&WRITTEN, sum(samples, |sample| sample.traffic.device));
    page.one(&ITEMS, sum(samples, |sample| sample.traffic.items));
    page.one(&COMPACTED, sum(samples, |sample| sample.compacted.segments));
    page.one(&KEPT, sum(samples, |sample| sample.compacted.kept));
    page.one(&MOVED, sum(samples, |sample| sample.compacted.bytes));
    page.one(&DISCARDED, sum(samples, |sample| sample.compacted.discarded));
    page.each(&DAMAGED, "damage", [("unreadable", unreadable as u64), ("lost", lost as u64)]);
    page.one(&DAMAGED_READS, sum(samples, |sample| sample.damaged_reads));
    page.one(&MISSING, store.missing.len() as u64);
    page.one(&OPENING, store.census.took.as_secs_f64());
    page.one(&HITS, sum(samples, |sample| sample.cache.hits));
    page.one(&MISSES, sum(samples, |sample| sample.cache.misses));
    page.one(&CACHED_ITEMS, sum(samples, |sample| sample.cache.items));
    page.one(&CACHED_BYTES, sum(samples, |sample| sample.cache.bytes));
}

fn of_cores(page: &mut Page, store: &Store, samples: &[Sample]) {
    page.begin(&CHUNKS);
    for (core, sample) in samples.iter().enumerate() {
        let core = core.to_string();
        for (pool, census) in [("requests", Some(sample.memory)), ("cache", sample.cache_memory)] {
            let Some(Census { free, owned, in_flight, published, quarantined, .. }) = census else { continue };
            let owners =
                [("free", free), ("owned", owned), ("in_flight", in_flight), ("published", published), ("quarantined", quarantined)];
            for (state, count) in owners {
                page.number(&CHUNKS, "", &[("core", &core), ("pool", pool), ("state", state)], u64::from(count).into());
            }
        }
    }
    let region = store.region();
    page.one(&CHUNK_BYTES, u64::from(region.chunk_bytes()));
    page.each(&REGION, "pages", [(region.pages().name(), region.bytes())]);
    let mut each = |family: &Family, of: fn(&Sample) -> u64| {
        page.each(family, "core", samples.iter().enumerate().map(|(core, sample)| (core.to_string(), of(sample))));
    };
    each(&TURNS, |sample| sample.reactor.turns);
    each(&SLEEPS, |sample| sample.reactor.sleeps);
    each(&NEAR_SLEEPS, |sample| sample.reactor.near_sleeps);
    each(&PANICS, |sample| sample.reactor.panics);
    each(&TASKS, |sample| sample.tasks.0 as u64);
    each(&TASKS_MAX, |sample| sample.tasks.1 as u64);
    each(&OPERATIONS, |sample| sample.operations.0 as u64);
    each(&OPERATIONS_MAX, |sample| sample.operations.1 as u64);
    each(&FAULTS, |sample| sample.faults);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_as_they_are_to_be_and_in_the_documentation() {
        let text = include_str!("../../../docs/OPERATING.md");
        for family in FAMILIES {
            let Family { name, kind, help } = family;
            assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'), "{name}");
            assert_eq!(name.ends_with("_total"), *kind == Type::Counter, "{name}");
            assert!(name.starts_with("basin_") || name.starts_with("process_"), "{name}");
            assert!(help.ends_with('.') && !help.contains('|'), "{name}: {help}");
            assert!(text.contains(&format!("| `{name}` |")), "docs/OPERATING.md lacks {name}");
        }
        let mut names: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
    }

    #[test]
    fn what_the_process_took_is_there() {
        let (seconds, resident) = process();
        assert!(seconds > 0.0 && resident > 1 << 20, "{seconds} {resident}");
    }
}
