/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Counts the payload bytes that the kernel copies for one process: on the way between its own buffers and AF_XDP memory, between
 * UDP sockets and user memory, through bounce buffers of NVMe passthrough, and through the page cache where a file is not
 * written directly after all. Only what one of these functions copies is counted; docs/ZERO-COPY.md says what that leaves out.
 *
 * A function this kernel does not have, or has under another name, is not attached, and the reader says that the sum is unknown.
 */
#include <linux/bpf.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* What the kernel's structures are called; where the fields are is found out when the program is loaded. */
#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
	struct {
		__s64 counter;
	} skc_cookie;
};

struct sock {
	struct sock_common __sk_common;
};

struct xdp_sock {
	struct sock sk;
};

struct sk_buff {
	unsigned int len;
	unsigned int data_len;
	struct sock *sk;
};

struct iov_iter {
	__kernel_size_t count;
};

struct bio {
	void *bi_private;
};

struct request {
	struct bio *bio;
};

struct super_block {
	__u32 s_dev;
};

struct inode {
	unsigned long i_ino;
	struct super_block *i_sb;
};

struct file {
	struct inode *f_inode;
};

struct kiocb {
	struct file *ki_filp;
};

#pragma clang attribute pop

struct file_id {
	__u64 inode;
	__u64 device;
};

/* Set before loading: the process, as its own PID namespace numbers it. */
const volatile struct {
	__u64 namespace_device;
	__u64 namespace_inode;
	__u64 pid;
} self = {};

/* Bytes, by kind: enum kind. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__type(key, __u32);
	__type(value, __u64);
} copied SEC(".maps");

/* The AF_XDP sockets, by cookie: their packets are received in whatever context the interrupt came in on. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 256);
	__type(key, __u64);
	__type(value, __u8);
} sockets SEC(".maps");

/* The files that are storage. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__type(key, struct file_id);
	__type(value, __u8);
} files SEC(".maps");

enum kind { PACKETS, SOCKETS, BOUNCES, PAGE_CACHE };

static __always_inline void add(__u32 kind, __s64 bytes)
{
	__u64 *sum = bpf_map_lookup_elem(&copied, &kind);

	if (sum && bytes > 0)
		*sum += bytes;
}

static __always_inline int is_ours(void)
{
	struct bpf_pidns_info task;

	return !bpf_get_ns_current_pid_tgid(self.namespace_device, self.namespace_inode, &task, sizeof(task)) && task.tgid == self.pid;
}

static __always_inline int is_our_socket(struct sock *sk)
{
	__u64 cookie = BPF_CORE_READ(sk, __sk_common.skc_cookie.counter);

	return bpf_map_lookup_elem(&sockets, &cookie) != 0;
}

/* Receive in copy mode: from the driver's buffer, or from the packet made of it, into a chunk. */
SEC("fentry/__xsk_rcv")
int BPF_PROG(packet_in, struct xdp_sock *xs, void *xdp, __u32 len)
{
	if (is_our_socket((struct sock *)xs))
		add(PACKETS, len);
	return 0;
}

/* Send in copy mode: what of the packet lies in its own head was copied there; its fragments are the chunks themselves. */
SEC("fentry/__dev_direct_xmit")
int BPF_PROG(packet_out, struct sk_buff *skb)
{
	struct sock *sk = skb->sk;

	if (sk && is_our_socket(sk))
		add(PACKETS, skb->len - skb->data_len);
	return 0;
}

static __always_inline int socket_call(void *ctx)
{
	__u64 bytes = 0;

	if (is_ours() && !bpf_get_func_ret(ctx, &bytes))
		add(SOCKETS, (__s32)bytes);
	return 0;
}

SEC("fexit/udp_sendmsg")
int udp_out(void *ctx)
{
	return socket_call(ctx);
}

SEC("fexit/udp_recvmsg")
int udp_in(void *ctx)
{
	return socket_call(ctx);
}

SEC("fexit/udpv6_sendmsg")
int udpv6_out(void *ctx)
{
	return socket_call(ctx);
}

SEC("fexit/udpv6_recvmsg")
int udpv6_in(void *ctx)
{
	return socket_call(ctx);
}

/* Passthrough: a request whose memory did not suit the controller carries what to copy back in its bio. */
SEC("fexit/blk_rq_map_user_iov")
int BPF_PROG(bounce, void *queue, struct request *rq, void *map_data, const struct iov_iter *iter)
{
	__u64 failed = 0;

	if (!is_ours() || bpf_get_func_ret(ctx, &failed) || (__s32)failed)
		return 0;
	struct bio *bio = BPF_CORE_READ(rq, bio);
	if (bio && BPF_CORE_READ(bio, bi_private))
		add(BOUNCES, BPF_CORE_READ(iter, count));
	return 0;
}

static __always_inline int file_call(void *ctx, struct kiocb *iocb)
{
	__u64 bytes = 0;
	struct inode *inode = BPF_CORE_READ(iocb, ki_filp, f_inode);
	struct file_id id = {
		.inode = BPF_CORE_READ(inode, i_ino),
		.device = BPF_CORE_READ(inode, i_sb, s_dev),
	};

	if (bpf_map_lookup_elem(&files, &id) && is_ours() && !bpf_get_func_ret(ctx, &bytes))
		add(PAGE_CACHE, bytes);
	return 0;
}

SEC("fexit/generic_perform_write")
int BPF_PROG(cached_write, struct kiocb *iocb)
{
	return file_call(ctx, iocb);
}

SEC("fexit/iomap_file_buffered_write")
int BPF_PROG(iomap_write, struct kiocb *iocb)
{
	return file_call(ctx, iocb);
}

SEC("fexit/filemap_read")
int BPF_PROG(cached_read, struct kiocb *iocb)
{
	return file_call(ctx, iocb);
}

SEC("fexit/shmem_file_read_iter")
int BPF_PROG(tmpfs_read, struct kiocb *iocb)
{
	return file_call(ctx, iocb);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
