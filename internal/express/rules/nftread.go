package rules

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// attrs are the attributes of a netlink message or of a nested attribute.
// Their integers are in network byte order.
type attrs []attr

type attr struct {
	typ  uint16
	data []byte
}

func parseAttrs(b []byte) attrs {
	a := make(attrs, 0, 8)
	for typ, data := range nlmsg.Attributes(b) {
		a = append(a, attr{typ, data})
	}
	return a
}

// get returns the payload of an attribute, nil if there is none.
func (a attrs) get(typ uint16) []byte {
	for _, x := range a {
		if x.typ == typ {
			return x.data
		}
	}
	return nil
}

func (a attrs) has(typ uint16) bool {
	return slices.ContainsFunc(a, func(x attr) bool { return x.typ == typ })
}

func (a attrs) nested(typ uint16) attrs { return parseAttrs(a.get(typ)) }

func (a attrs) text(typ uint16) string {
	return string(bytes.TrimRight(a.get(typ), "\x00"))
}

func (a attrs) number(typ uint16) uint32 {
	if b := a.get(typ); len(b) == 4 {
		return binary.BigEndian.Uint32(b)
	}
	return 0
}

func (a attrs) handle(typ uint16) uint64 {
	if b := a.get(typ); len(b) == 8 {
		return binary.BigEndian.Uint64(b)
	}
	return 0
}

// tableKey names a table of nftables.
type tableKey struct {
	family byte
	name   string
}

var familyNames = map[byte]string{
	unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge",
}

func (k tableKey) String() string { return familyNames[k.family] + " " + k.name }

// nftReader reads nftables.
type nftReader struct {
	opts    Options
	exact   exactCounters
	sock    *nlmsg.Socket
	dormant map[tableKey]bool // tables whose chains are at no hook
	chains  map[tableKey]map[string]*chain
	sets    map[tableKey]map[string]*set
	bases   []*base

	elements int // of sets, that have been read
	rules    int // that have been read
}

// readNFTables returns the base chains, and of which families there are tables.
func readNFTables(opts Options, exact exactCounters) ([]*base, map[family]bool, error) {
	sock, err := nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_NETFILTER})
	if err != nil {
		return nil, nil, err
	}
	defer sock.Close()
	var r nftReader
	err = retry(func() error {
		r = nftReader{
			opts: opts, exact: exact, sock: sock,
			dormant: make(map[tableKey]bool),
			chains:  make(map[tableKey]map[string]*chain),
			sets:    make(map[tableKey]map[string]*set),
		}
		return r.readOnce()
	})
	tabled := make(map[family]bool)
	for key := range r.dormant {
		for _, f := range familiesOf(key.family) {
			tabled[f] = true
		}
	}
	return r.bases, tabled, err
}

// readOnce reads everything. The result is invalid if the rules have changed
// meanwhile.
func (r *nftReader) readOnce() error {
	before, err := r.generation()
	if errors.Is(err, unix.EINVAL) {
		return nil // a kernel without nftables
	}
	if err != nil {
		return err
	}
	if err := r.read(); err != nil {
		return err
	}
	after, err := r.generation()
	if err == nil && before != after {
		err = errChanged
	}
	return err
}

// request sends a request about one family, or about all.
func (r *nftReader) request(msg uint16, family byte, flags uint16, ask map[uint16]string, reply func(nlmsg.Message)) error {
	ae := nlmsg.NewEncoder()
	for typ, name := range ask {
		ae.String(typ, name)
	}
	data, err := ae.Encode()
	if err != nil {
		return err
	}
	err = r.sock.Request(nlmsg.Request{
		Type: unix.NFNL_SUBSYS_NFTABLES<<8 | msg, Flags: flags,
		Data: append([]byte{family, unix.NFNETLINK_V0, 0, 0}, data...), // struct nfgenmsg
	}, reply)
	if errors.Is(err, unix.ENOENT) { // a listed object is gone
		return errChanged
	}
	return err
}

// sizeofNfgenmsg is the size of struct nfgenmsg, which attributes follow.
const sizeofNfgenmsg = 4

// dump lists all objects of a kind and calls fn with the family and the
// attributes of each.
func (r *nftReader) dump(msg uint16, family byte, ask map[uint16]string, fn func(family byte, a attrs)) error {
	return r.request(msg, family, unix.NLM_F_DUMP, ask, func(m nlmsg.Message) {
		if len(m.Data) >= sizeofNfgenmsg {
			fn(m.Data[0], parseAttrs(m.Data[sizeofNfgenmsg:]))
		}
	})
}

// generation returns the number of the ruleset, which each change increases.
func (r *nftReader) generation() (id uint32, err error) {
	err = r.request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, 0, nil, func(m nlmsg.Message) {
		if len(m.Data) >= sizeofNfgenmsg {
			id = parseAttrs(m.Data[sizeofNfgenmsg:]).number(unix.NFTA_GEN_ID)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read generation: %w", err)
	}
	return id, nil
}

func (r *nftReader) tooMany() bool { return r.opts.Drops && r.rules > mostDropRules }

// read reads the tables that have a relevant base chain. In a cluster the
// others, with address translation only, are the large ones.
func (r *nftReader) read() error {
	const isDormant = 1 // NFT_TABLE_F_DORMANT
	err := r.dump(unix.NFT_MSG_GETTABLE, unix.AF_UNSPEC, nil, func(family byte, a attrs) {
		key := tableKey{family, a.text(unix.NFTA_TABLE_NAME)}
		r.dormant[key] = a.number(unix.NFTA_TABLE_FLAGS)&isDormant != 0
	})
	if err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	if err := r.dump(unix.NFT_MSG_GETCHAIN, unix.AF_UNSPEC, nil, r.addChain); err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	wanted := make(map[tableKey]bool)
	for _, b := range r.bases {
		for key, chains := range r.chains {
			wanted[key] = wanted[key] || chains[b.chain.name] == b.chain
		}
	}
	for key, chains := range r.chains {
		if !wanted[key] {
			continue
		}
		if err := r.readSets(key); err != nil {
			return fmt.Errorf("read sets of %v: %w", key, err)
		}
		err := r.dump(unix.NFT_MSG_GETRULE, key.family, map[uint16]string{unix.NFTA_RULE_TABLE: key.name},
			func(family byte, a attrs) {
				c := chains[a.text(unix.NFTA_RULE_CHAIN)]
				// Old kernels dump the rules of all tables.
				if r.rules++; r.tooMany() {
					return
				}
				if c != nil && family == key.family && a.text(unix.NFTA_RULE_TABLE) == key.name {
					c.rules = append(c.rules, r.compile(key, c, a))
				}
			})
		if err != nil {
			return fmt.Errorf("read rules of %v: %w", key, err)
		}
		if r.tooMany() {
			return ErrTooMany
		}
	}
	return r.readElements()
}

// addChain adds a chain that was dumped.
func (r *nftReader) addChain(family byte, a attrs) {
	if familyNames[family] == "" { // no family of IP packets
		return
	}
	key := tableKey{family, a.text(unix.NFTA_CHAIN_TABLE)}
	if r.chains[key] == nil {
		r.chains[key] = make(map[string]*chain)
	}
	const chainUserdata = 12 // NFTA_CHAIN_USERDATA
	c := &chain{
		table: key.String(), name: a.text(unix.NFTA_CHAIN_NAME),
		comment: udataComment(a.get(chainUserdata)),
	}
	r.chains[key][c.name] = c

	const nfDrop = 0
	at := a.nested(unix.NFTA_CHAIN_HOOK)
	if len(at) == 0 || r.dormant[key] {
		return
	}
	b := &base{
		chain: c, hook: hookOf(family, at.number(unix.NFTA_HOOK_HOOKNUM)), families: familiesOf(family),
		priority: int32(at.number(unix.NFTA_HOOK_PRIORITY)),
		devices:  hookDevices(at),
		nat:      a.text(unix.NFTA_CHAIN_TYPE) == "nat",
		drops:    a.has(unix.NFTA_CHAIN_POLICY) && a.number(unix.NFTA_CHAIN_POLICY) == nfDrop,
	}
	if b.hook != "" && (r.opts.Drops || !b.starting() || b.outer()) {
		r.bases = append(r.bases, b)
	}
}

// familiesOf returns the IP families that chains of an nftables family see.
func familiesOf(nfproto byte) []family {
	switch nfproto {
	case unix.NFPROTO_IPV4:
		return []family{ipv4}
	case unix.NFPROTO_IPV6:
		return []family{ipv6}
	default:
		return []family{ipv4, ipv6}
	}
}

// hookOf returns the hook of a base chain, "" if it sees neither a container's
// packets nor the outer packets of a tunnel.
func hookOf(family byte, number uint32) hook {
	const inetIngress = 5
	switch family {
	case unix.NFPROTO_NETDEV:
		if number == unix.NF_NETDEV_INGRESS {
			return ingress
		}
		return egress
	case unix.NFPROTO_BRIDGE:
		switch number {
		case unix.NF_INET_PRE_ROUTING:
			return bridgePrerouting
		case unix.NF_INET_LOCAL_IN:
			return bridgeInput
		case unix.NF_INET_FORWARD:
			return bridgeForward
		case unix.NF_INET_LOCAL_OUT:
			return bridgeOutput
		case unix.NF_INET_POST_ROUTING:
			return bridgePostrouting
		default:
			return ""
		}
	}
	switch number {
	case unix.NF_INET_PRE_ROUTING:
		return prerouting
	case unix.NF_INET_LOCAL_IN:
		return input
	case unix.NF_INET_FORWARD:
		return forward
	case unix.NF_INET_LOCAL_OUT:
		return output
	case unix.NF_INET_POST_ROUTING:
		return postrouting
	case inetIngress:
		return ingress
	default:
		return ""
	}
}

// hookDevices lists the devices of an ingress or egress chain, "eth*" for all
// with that prefix.
func hookDevices(at attrs) (patterns []string) {
	const hookDevs, devName = 4, 1 // NFTA_HOOK_DEVS, NFTA_DEVICE_NAME
	if name := at.text(unix.NFTA_HOOK_DEV); name != "" {
		patterns = append(patterns, name)
	}
	for typ, data := range nlmsg.Attributes(at.get(hookDevs)) {
		name := string(bytes.TrimRight(data, "\x00"))
		if typ != devName { // since Linux 6.17: how names begin
			name += "*"
		}
		patterns = append(patterns, name)
	}
	return patterns
}

// verdict returns the verdict in an attribute of type nft_data.
func (r *nftReader) verdict(key tableKey, data []byte) (v verdict, text string) {
	const nfDrop, nfAccept, nfQueue = 0, 1, 3
	a := parseAttrs(data).nested(unix.NFTA_DATA_VERDICT)
	code := int32(a.number(unix.NFTA_VERDICT_CODE))
	target := r.chains[key][a.text(unix.NFTA_VERDICT_CHAIN)]
	switch code {
	case nfDrop:
		return verdict{kind: drops}, "drop"
	case nfAccept:
		return verdict{kind: accepts}, "accept"
	case unix.NFT_RETURN:
		return verdict{kind: back}, "return"
	case unix.NFT_JUMP, unix.NFT_GOTO:
		k, word := jump, "jump "
		if code == unix.NFT_GOTO {
			k, word = goTo, "goto "
		}
		if target == nil {
			target = unknownChain(key.String(), a.text(unix.NFTA_VERDICT_CHAIN))
		}
		return verdict{kind: k, target: target}, word + target.name
	case unix.NFT_CONTINUE:
		return verdict{}, "continue"
	default:
		c := unknownChain(key.String(), fmt.Sprintf("verdict %d", code))
		return verdict{kind: jump, target: c}, c.name
	}
}

// unknownChain stands for a chain that was not found.
func unknownChain(table, name string) *chain {
	c := &chain{table: table, name: name}
	c.rules = []*rule{{chain: c, steps: []step{needing("", "not known to SCON")}, verdicts: []verdict{{}}}}
	return c
}
