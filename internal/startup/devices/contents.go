package devices

import (
	"bytes"
	"reflect"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// rule is a rule in the kernel's form. The library leaves out expressions that it does not
// know: a rule that was replaced could look the same.
type rule struct {
	exprs   []byte
	comment string
}

// rulesOf returns the rules of a table by chain, in one request, since there may be
// thousands of chains. The kernel's list is of this table alone.
func rulesOf(table *nftables.Table) (map[string][]rule, error) {
	s, err := nlmsg.OpenRequests(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	all := make(map[string][]rule)
	r := nlmsg.Request{
		Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Flags: unix.NLM_F_DUMP,
		Data: slices.Concat([]byte{byte(table.Family), unix.NFNETLINK_V0, 0, 0}, nlmsg.Attr(unix.NFTA_RULE_TABLE, append([]byte(table.Name), 0))),
	}
	return all, s.Request(r, func(m nlmsg.Message) {
		var chain string
		var r rule
		for typ, value := range nlmsg.Attributes(m.Data[min(4, len(m.Data)):]) {
			switch typ {
			case unix.NFTA_RULE_CHAIN:
				chain = unix.ByteSliceToString(value)
			case unix.NFTA_RULE_EXPRESSIONS:
				r.exprs = slices.Clone(value)
			case unix.NFTA_RULE_USERDATA:
				r.comment, _ = userdata.GetString(value, userdata.TypeComment)
			}
		}
		all[chain] = append(all[chain], r)
	})
}

// are reports whether a chain has these rules, and no others.
func are(rules []rule, want [][]expr.Any) bool {
	return slices.EqualFunc(rules, want, rule.is)
}

// is reports whether a rule has these expressions, and no others.
func (r rule) is(want []expr.Any) bool {
	i := 0
	for _, e := range nlmsg.Attributes(r.exprs) {
		if i == len(want) || !isExpr(e, want[i]) {
			return false
		}
		i++
	}
	return i == len(want)
}

// isExpr reports whether an expression in the kernel's form is the wanted one. The kernel
// adds attributes to what was written: it is read, and written again.
func isExpr(kernel []byte, want expr.Any) bool {
	if l, ok := want.(*expr.Lookup); ok { // the kernel knows the set by its name
		want = &expr.Lookup{SourceRegister: l.SourceRegister, DestRegister: l.DestRegister, IsDestRegSet: l.IsDestRegSet, SetName: l.SetName}
	}
	there, _ := reflect.New(reflect.TypeOf(want).Elem()).Interface().(expr.Any)
	ours, err := expr.Marshal(0, want)
	if err != nil || !bytes.Equal(nlmsg.Find(kernel, unix.NFTA_EXPR_NAME), nlmsg.Find(ours, unix.NFTA_EXPR_NAME)) {
		return false
	}
	if err := expr.Unmarshal(0, nlmsg.Find(kernel, unix.NFTA_EXPR_DATA), there); err != nil {
		return false
	}
	theirs, err := expr.Marshal(0, there)
	return err == nil && bytes.Equal(theirs, ours)
}
