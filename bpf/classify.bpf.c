// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Classification of packets for the HTB trees that shape a link.
//
// The owner of a packet is known at other places than the class is needed, so there are five
// programs:
//
//   egress   HTB of the link: by the mark that `mark` set, or by the cgroup of the socket. This is
//            also the last place where a flow has the addresses that its answers will have
//            (after masquerade), so the flow is stored here.
//   ingress  HTB of the ifb: by the stored flow; for a datagram of a flow without an answer yet,
//            by the receiving socket.
//   mark     host end of a pod's veth, from the pod: the socket is still known here and lost
//            after routing; the mark carries its class to the link.
//   redirect clsact of the link: sends every packet to the ifb.
//   learn    host end of a pod's veth, to the pod: stores flows to a pod that never answers.
//
// Classes are the minor numbers of HTB's leaves; CLASS_SYSTEM is that of unassigned traffic.
//
// Needs -D: MAJOR, CLASS_SYSTEM, MARK_MASK, MARK_SHIFT, MAX_CGROUPS, MAX_LINKS, MAX_FLOWS,
// OFF_SOCK_CGROUP and those of ancestors.h.
#include <linux/types.h>
#include "typed.h"
#include "ancestors.h"

#define ETHERTYPE_IPV4 0x0800
#define ETHERTYPE_IPV6 0x86dd
#define PROTOCOL_TCP 6
#define PROTOCOL_UDP 17
#define PROTOCOL_SCTP 132
#define FROM_NETWORK_HEADER 1 // enum bpf_hdr_start_off
#define FRAGMENT_OFFSET 0x1fff
#define NO_MATCH 0 // cls_bpf: continue with the next filter

struct flow {
	u32 here[4];
	u32 there[4];
	u16 port_here;
	u16 port_there;
	u32 protocol;
};

struct assigned {
	u32 class;
	u32 unused;
};

BPF_HASH(class_of_cgroup, u64, struct assigned, MAX_CGROUPS);
BPF_HASH(class_of_link, u64, struct assigned, MAX_LINKS);
BPF_TABLE("lru_hash", struct flow, u32, class_of_flow, MAX_FLOWS);
BPF_PERCPU_ARRAY(scratch, u64, 1);

static __always_inline u32 class_by_cgroup(struct __sk_buff *skb)
{
	u64 id = bpf_skb_cgroup_id(skb);
	struct assigned *found = class_of_cgroup.lookup(&id);

	// From the root downwards: see ancestors.h.
	for (int level = 1; !found && level <= CGROUP_LEVELS; level++) {
		id = bpf_skb_ancestor_cgroup_id(skb, level);
		if (!id)
			break;
		found = class_of_cgroup.lookup(&id);
	}
	return found ? found->class : 0;
}

static __always_inline u32 class_by_link(u64 ifindex)
{
	struct assigned *found = class_of_link.lookup(&ifindex);

	return found ? found->class : 0;
}

// Addresses and ports as in the packet: source and destination. False if it has no ports.
static __always_inline bool read_flow(struct __sk_buff *skb, u32 *source, u32 *destination,
				      u16 *ports, u32 *protocol)
{
	u32 offset;

	if (skb->protocol == bpf_htons(ETHERTYPE_IPV4)) {
		struct {
			u8 version_length, tos;
			u16 length, id, fragment;
			u8 ttl, protocol;
			u16 checksum;
			u32 source, destination;
		} header;

		if (bpf_skb_load_bytes_relative(skb, 0, &header, sizeof(header), FROM_NETWORK_HEADER))
			return false;
		if (header.fragment & bpf_htons(FRAGMENT_OFFSET))
			return false;
		source[0] = header.source;
		destination[0] = header.destination;
		*protocol = header.protocol;
		offset = (header.version_length & 0xf) * 4;
	} else if (skb->protocol == bpf_htons(ETHERTYPE_IPV6)) {
		struct {
			u32 version;
			u16 length;
			u8 protocol, hops;
			u32 source[4], destination[4];
		} header;

		if (bpf_skb_load_bytes_relative(skb, 0, &header, sizeof(header), FROM_NETWORK_HEADER))
			return false;
		__builtin_memcpy(source, header.source, sizeof(header.source));
		__builtin_memcpy(destination, header.destination, sizeof(header.destination));
		*protocol = header.protocol;
		offset = sizeof(header);
	} else {
		return false;
	}
	if (*protocol != PROTOCOL_TCP && *protocol != PROTOCOL_UDP && *protocol != PROTOCOL_SCTP)
		return false;
	return !bpf_skb_load_bytes_relative(skb, offset, ports, 4, FROM_NETWORK_HEADER);
}

static __always_inline bool outgoing_flow(struct __sk_buff *skb, struct flow *flow)
{
	u16 ports[2];
	bool known = read_flow(skb, flow->here, flow->there, ports, &flow->protocol);

	flow->port_here = ports[0];
	flow->port_there = ports[1];
	return known;
}

static __always_inline bool incoming_flow(struct __sk_buff *skb, struct flow *flow)
{
	u16 ports[2];
	bool known = read_flow(skb, flow->there, flow->here, ports, &flow->protocol);

	flow->port_there = ports[0];
	flow->port_here = ports[1];
	return known;
}

static __always_inline void remember(struct flow *flow, u32 class)
{
	u32 *known = class_of_flow.lookup(flow);

	if (known && *known == class)
		return;
	if (class != CLASS_SYSTEM)
		class_of_flow.update(flow, &class);
	else if (known) // the port belonged to another workload before
		class_of_flow.delete(flow);
}

static __always_inline u32 class_by_datagram_socket(struct __sk_buff *skb, struct flow *flow)
{
	struct bpf_sock_tuple tuple = {};
	u32 size = sizeof(tuple.ipv6), class = 0;

	if (skb->protocol == bpf_htons(ETHERTYPE_IPV4)) {
		tuple.ipv4.saddr = flow->there[0];
		tuple.ipv4.daddr = flow->here[0];
		tuple.ipv4.sport = flow->port_there;
		tuple.ipv4.dport = flow->port_here;
		size = sizeof(tuple.ipv4);
	} else {
		__builtin_memcpy(tuple.ipv6.saddr, flow->there, sizeof(flow->there));
		__builtin_memcpy(tuple.ipv6.daddr, flow->here, sizeof(flow->here));
		tuple.ipv6.sport = flow->port_there;
		tuple.ipv6.dport = flow->port_here;
	}
	struct bpf_sock *socket = bpf_sk_lookup_udp(skb, &tuple, size, BPF_F_CURRENT_NETNS, 0);

	if (!socket)
		return 0;
	// The verifier allows no arithmetic on a socket pointer; loaded from a map it is a number.
	u32 zero = 0;
	u64 *address = scratch.lookup(&zero);
	u64 cgroup = 0;

	if (address) {
		*address = (u64)socket;
		cgroup = read_u64(*(volatile u64 *)address + OFF_SOCK_CGROUP);
	}

	u32 depth = cgroup ? cgroup_level(cgroup) : 0;

	// No helper gives this program type the cgroup of a socket other than the packet's own.
	for (u32 level = 1; level <= CGROUP_LEVELS; level++) {
		if (level > depth)
			break;
		u64 id = ancestor_id(cgroup, level);
		struct assigned *found = class_of_cgroup.lookup(&id);

		if (found) {
			class = found->class;
			break;
		}
	}
	bpf_sk_release(socket);
	return class;
}

// Ingress of the link: every packet goes to the ifb.
int redirect(struct __sk_buff *skb)
{
	return -1; // cls_bpf: a match
}

int egress(struct __sk_buff *skb)
{
	u32 class = (skb->mark & MARK_MASK) >> MARK_SHIFT;
	struct flow flow = {};

	if (!class)
		class = class_by_cgroup(skb);
	if (!class)
		class = CLASS_SYSTEM;
	if (outgoing_flow(skb, &flow))
		remember(&flow, class);
	return MAJOR << 16 | class;
}

int ingress(struct __sk_buff *skb)
{
	struct flow flow = {};
	u32 class = 0;

	if (incoming_flow(skb, &flow)) {
		u32 *known = class_of_flow.lookup(&flow);

		if (known)
			class = *known;
		else if (flow.protocol == PROTOCOL_UDP)
			class = class_by_datagram_socket(skb, &flow);
	}
	return MAJOR << 16 | (class ? class : CLASS_SYSTEM);
}

int mark(struct __sk_buff *skb)
{
	u32 class = class_by_cgroup(skb);

	if (!class)
		class = class_by_link(skb->ifindex);
	skb->mark = (skb->mark & ~MARK_MASK) | (class << MARK_SHIFT & MARK_MASK);
	// HTB takes the class from a priority with its own major number before it runs any filter.
	if (skb->priority >> 16 == MAJOR)
		skb->priority = 0;
	return NO_MATCH;
}

int learn(struct __sk_buff *skb)
{
	u32 class = class_by_link(skb->ifindex);
	struct flow flow = {};

	if (class && incoming_flow(skb, &flow))
		remember(&flow, class);
	return NO_MATCH;
}
