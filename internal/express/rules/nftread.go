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
	*nftables
	sock *nlmsg.Requests
	// noted returns what was announced of the generations behind one, up to another;
	// false if that is not known.
	noted  func(from, to uint32) ([]nlmsg.Message, bool)
	missed bool // a chain or a set that was listed is gone
}

// readNFTables reads nftables, to follow the rules if that is asked for: by what is
// announced while they are read (noted), nil if nothing is.
func readNFTables(opts Options, exact *exactCounters, noted func(from, to uint32) ([]nlmsg.Message, bool)) (*nftables, error) {
	sock, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer sock.Close()
	var r nftReader
	err = retry(func() error {
		r = nftReader{nftables: newNFTables(opts, exact), sock: sock, noted: noted}
		r.follows = noted != nil
		return r.readOnce()
	})
	return r.nftables, err
}

// mostCaughtUp bounds how often readOnce catches up with changes.
const mostCaughtUp = 64

// readOnce reads everything, and then again what has changed meanwhile, until nothing
// has. A chain in which nothing has changed while its rules were listed was listed as it
// is, whatever has changed elsewhere.
func (r *nftReader) readOnce() (err error) {
	generation, err := r.current()
	if errors.Is(err, unix.EINVAL) {
		return nil // a kernel without nftables
	}
	if err != nil {
		return err
	}
	if err := r.read(); err != nil {
		return err
	}
	for range mostCaughtUp {
		now, err := r.current()
		if err != nil {
			return err
		}
		if now == generation {
			if r.missed || r.doubtful != "" {
				return errChanged
			}
			r.nftables.generation = now
			r.cool()
			return nil
		}
		if err := r.catchUp(generation, now); err != nil {
			return err
		}
		generation = now
	}
	return errChanged
}

// catchUp reads again what changed from one generation to another.
func (r *nftReader) catchUp(from, to uint32) error {
	if r.noted == nil {
		return errChanged
	}
	messages, ok := r.noted(from, to)
	if !ok {
		return errChanged
	}
	chains, sets := make(map[place]bool), make(map[place]bool)
	for _, m := range messages {
		if len(m.Data) < nlmsg.SizeofNfgenmsg || familyNames[m.Data[0]] == "" {
			continue
		}
		a := parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:])
		const tableName = 1
		t := r.tables[tableKey{m.Data[0], a.text(tableName)}]
		if t == nil {
			return errChanged
		}
		switch msg := m.Type & 0xff; msg {
		case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
			if a.has(unix.NFTA_CHAIN_HOOK) {
				return errChanged
			}
			name, handle := a.text(unix.NFTA_CHAIN_NAME), a.handle(unix.NFTA_CHAIN_HANDLE)
			if msg == unix.NFT_MSG_NEWCHAIN {
				r.take(m)
				chains[place{t.key, name}] = true
			} else if c := t.handles[handle]; c != nil {
				c.forgetRules()
				t.removeChain(c)
			}
		case unix.NFT_MSG_NEWSET:
			r.take(m)
			sets[place{t.key, a.text(unix.NFTA_SET_NAME)}] = true
		case unix.NFT_MSG_DELSET:
			if s := t.sets[a.text(unix.NFTA_SET_NAME)]; s != nil && s.handle == makeSet(a).handle {
				t.removeSet(s)
			}
		case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
			sets[place{t.key, a.text(unix.NFTA_SET_ELEM_LIST_SET)}] = true
		case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
			chains[place{t.key, a.text(unix.NFTA_RULE_CHAIN)}] = true
		default:
			return errChanged
		}
	}
	r.missed = false
	for at := range sets {
		if s := r.tables[at.table].sets[at.name]; s != nil {
			s.forgetElements()
			if err := r.readElements(r.tables[at.table], s); err != nil {
				return err
			}
		}
	}
	for at := range chains {
		if c := r.chainAt(at); c != nil {
			c.forgetRules()
			if err := r.readRules(r.tables[at.table], c); err != nil {
				return err
			}
		}
	}
	return nil
}

// forgetRules makes a chain as it is before its rules are read.
func (c *chain) forgetRules() {
	for _, r := range c.all {
		c.count(r, -1)
	}
	c.track(-c.trackers)
	c.in.rules -= len(c.all)
	c.all = nil
	c.changedWay()
}

// forgetElements makes a set as it is before its elements are read.
func (s *set) forgetElements() {
	s.in.elements -= s.elements.len()
	s.elements, s.changes, s.fallback = list{}, nil, nil
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

// gone takes that a chain or a set does not exist any more for no error, if its end will be
// caught up with.
func (r *nftReader) gone(err error) error {
	if r.noted != nil && errors.Is(err, errChanged) {
		r.missed = true
		return nil
	}
	return err
}

// dump takes all objects of a kind in, of one table unless its name is "".
func (r *nftReader) dump(msg uint16, table tableKey, ask map[uint16]string) error {
	return r.request(msg, table.family, unix.NLM_F_DUMP, ask, func(m nlmsg.Message) {
		const tableName = 1 // the same for all objects
		if len(m.Data) < nlmsg.SizeofNfgenmsg {
			return
		}
		// Old kernels dump the objects of all tables.
		if table.name == "" || m.Data[0] == table.family && parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:]).text(tableName) == table.name {
			r.take(m)
		}
	})
}

// current returns the number of the ruleset, which each change increases.
func (r *nftReader) current() (id uint32, err error) {
	err = r.request(unix.NFT_MSG_GETGEN, unix.AF_UNSPEC, 0, nil, func(m nlmsg.Message) {
		if len(m.Data) >= nlmsg.SizeofNfgenmsg {
			id = parseAttrs(m.Data[nlmsg.SizeofNfgenmsg:]).number(unix.NFTA_GEN_ID)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("read generation: %w", err)
	}
	return id, nil
}

// read reads the tables that have a base chain that matters.
func (r *nftReader) read() error {
	if err := r.dump(unix.NFT_MSG_GETTABLE, tableKey{}, nil); err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	if err := r.dump(unix.NFT_MSG_GETCHAIN, tableKey{}, nil); err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	if err := r.dump(unix.NFT_MSG_GETOBJ, tableKey{}, nil); err != nil {
		return fmt.Errorf("read objects: %w", err)
	}
	for key, t := range r.tables {
		if !t.kept {
			t.skipped = true
			continue
		}
		if err := r.dump(unix.NFT_MSG_GETSET, key, map[uint16]string{unix.NFTA_SET_TABLE: key.name}); err != nil {
			return fmt.Errorf("read sets of %v: %w", key, err)
		}
		for _, s := range t.sets {
			if err := r.readElements(t, s); err != nil {
				return fmt.Errorf("read elements of %v: %w", key, err)
			}
		}
		for _, c := range t.chains {
			if err := r.readRules(t, c); err != nil {
				return fmt.Errorf("read rules of %v: %w", c, err)
			}
		}
		if r.opts.Drops && r.rules > mostDropRules {
			return ErrTooMany
		}
	}
	return r.countTrackers()
}

// countTrackers counts the rules that have conntrack track of tables that are not kept, where no
// other table has such: it is announced then which deletion is that of the last one. In a cluster
// the tables that are kept have some, and the others may be large. With Options.Ends all are read.
func (r *nftReader) countTrackers() error {
	if !r.follows {
		return nil
	}
	known := r.trackers
	for _, t := range r.tables {
		if t.kept || !r.opts.Ends && !slices.ContainsFunc(familiesOf(t.key.family), func(f family) bool { return known[f] == 0 }) {
			continue
		}
		t.counted = true
		for _, c := range t.chains {
			if err := r.readRules(t, c); err != nil {
				return fmt.Errorf("count the rules of %v: %w", c, err)
			}
		}
	}
	return nil
}

// readElements reads the elements of a set.
func (r *nftReader) readElements(t *table, s *set) error {
	if s.unknown {
		return nil
	}
	err := r.dump(unix.NFT_MSG_GETSETELEM, t.key,
		map[uint16]string{unix.NFTA_SET_ELEM_LIST_TABLE: t.key.name, unix.NFTA_SET_ELEM_LIST_SET: s.name})
	s.settle()
	return r.gone(err)
}

// readRules reads the rules of a chain. (Those of all chains at a time would be counted
// by the kernel from the first one on for each datagram, and be other ones if one of
// another chain is deleted meanwhile.)
func (r *nftReader) readRules(t *table, c *chain) error {
	return r.gone(r.dump(unix.NFT_MSG_GETRULE, t.key,
		map[uint16]string{unix.NFTA_RULE_TABLE: t.key.name, unix.NFTA_RULE_CHAIN: c.name}))
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
func (t *table) verdict(data []byte) (v verdict, text string) {
	const nfDrop, nfAccept, nfQueue = 0, 1, 3
	a := parseAttrs(data).nested(unix.NFTA_DATA_VERDICT)
	code := int32(a.number(unix.NFTA_VERDICT_CODE))
	target := t.chains[a.text(unix.NFTA_VERDICT_CHAIN)]
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
			target = unknownChain(t.key.String(), a.text(unix.NFTA_VERDICT_CHAIN))
		}
		return verdict{kind: k, target: target}, word + target.name
	case unix.NFT_CONTINUE:
		return verdict{}, "continue"
	default:
		c := unknownChain(t.key.String(), fmt.Sprintf("verdict %d", code))
		return verdict{kind: jump, target: c}, c.name
	}
}

// unknownChain stands for a chain that was not found.
func unknownChain(table, name string) *chain {
	c := &chain{table: table, name: name}
	c.rules = []*rule{{chain: c, code: &code{steps: []step{needing("", "not known to SCON")}, verdicts: []verdict{{}}}}}
	return c
}
