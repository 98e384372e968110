/* SPDX-License-Identifier: Apache-2.0 OR MIT OR GPL-2.0-only */
/*
 * Steers chosen UDP ports to the AF_XDP socket of the receive queue they came in on, and passes everything else to the kernel.
 *
 * The owner of a queue writes the time into `heartbeats` a few times a second. When that is older than STALE_NS the owner is
 * stopped, wedged or gone, and its traffic passes to the kernel too: a dead reader must not make a black hole.
 */
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/udp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* The most VLAN tags looked behind: one of the customer, one of the provider. */
#define VLAN_TAGS 2
/* The identifier in a tag. */
#define VLAN_ID 0x0fff
/* More fragments, or an offset: only the first fragment has a UDP header, so none is steered. */
#define IP_FRAGMENT 0x3fff

struct vlan_tag {
	__be16 tci;
	__be16 protocol;
};

/* What became of packets to the chosen ports; `passed` counts all others. */
struct counts {
	__u64 redirected;
	__u64 passed;
	__u64 stale;
};

/* Set before loading: nanoseconds after which a heartbeat is stale; the VLAN whose packets are chosen, or 0 for any and none. */
const volatile struct {
	__u64 stale_ns;
	__u64 vlan;
} settings = { 1000000000, 0 };

/* By receive queue: its AF_XDP socket. Resized to the interface's queues before loading. */
struct {
	__uint(type, BPF_MAP_TYPE_XSKMAP);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} sockets SEC(".maps");

/* By receive queue: when its owner was last alive, on the clock of bpf_ktime_get_ns(). Mapped and written by the owner. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} heartbeats SEC(".maps");

/* One bit per UDP port: word port / 64, bit port % 64. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1024);
	__type(key, __u32);
	__type(value, __u64);
} ports SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct counts);
} statistics SEC(".maps");

static __always_inline int is_ours(void *udp, void *end)
{
	struct udphdr *header = udp;

	if ((void *)(header + 1) > end)
		return 0;
	__u32 port = bpf_ntohs(header->dest);
	__u32 word = port / 64;
	__u64 *bits = bpf_map_lookup_elem(&ports, &word);
	return bits && (*bits >> (port % 64) & 1);
}

/* Whether the packet is UDP to a chosen port. IPv6 extension headers are not followed: such packets pass. */
static __always_inline int is_chosen(struct xdp_md *packet)
{
	void *data = (void *)(long)packet->data;
	void *end = (void *)(long)packet->data_end;
	struct ethhdr *ethernet = data;

	if ((void *)(ethernet + 1) > end)
		return 0;
	__be16 protocol = ethernet->h_proto;
	void *network = ethernet + 1;
	__u16 vlan = 0;

#pragma unroll
	for (int i = 0; i < VLAN_TAGS; i++) {
		if (protocol != bpf_htons(ETH_P_8021Q) && protocol != bpf_htons(ETH_P_8021AD))
			break;
		struct vlan_tag *tag = network;
		if ((void *)(tag + 1) > end)
			return 0;
		if (i == 0)
			vlan = bpf_ntohs(tag->tci) & VLAN_ID;
		protocol = tag->protocol;
		network = tag + 1;
	}
	if (settings.vlan && settings.vlan != vlan)
		return 0;

	if (protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = network;
		if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_UDP || ip->ihl < 5)
			return 0;
		if (ip->frag_off & bpf_htons(IP_FRAGMENT))
			return 0;
		return is_ours(network + ip->ihl * 4, end);
	}
	if (protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = network;
		if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_UDP)
			return 0;
		return is_ours(ip + 1, end);
	}
	return 0;
}

SEC("xdp.frags")
int steer(struct xdp_md *packet)
{
	__u32 zero = 0;
	__u32 queue = packet->rx_queue_index;
	struct counts *count = bpf_map_lookup_elem(&statistics, &zero);

	if (!count)
		return XDP_PASS;
	__u64 *heartbeat = bpf_map_lookup_elem(&heartbeats, &queue);
	if (!heartbeat || !is_chosen(packet)) {
		count->passed++;
		return XDP_PASS;
	}
	__u64 last = *(volatile __u64 *)heartbeat;
	__u64 now = bpf_ktime_get_ns();
	if (now > last && now - last > settings.stale_ns) {
		count->stale++;
		return XDP_PASS;
	}
	/* No socket on this queue: the packet passes, as the flags of bpf_redirect_map say. */
	int verdict = bpf_redirect_map(&sockets, queue, XDP_PASS);
	if (verdict == XDP_REDIRECT)
		count->redirected++;
	else
		count->passed++;
	return verdict;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
