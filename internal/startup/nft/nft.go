// Package nft has the nftables expressions that rules of containers are made of: those of the
// agent's networks and those of Docker's driver.
package nft

import (
	"net/netip"

	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
)

// Ends of rules.
var (
	Accept     = []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}}
	Drop       = []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}}
	Return     = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	Masquerade = []expr.Any{&expr.Masq{}}
)

// Established matches packets of established and related connections.
var Established = Conntrack(expr.CtKeySTATE, expr.CtStateBitESTABLISHED|expr.CtStateBitRELATED, expr.CmpOpNeq)

// Conntrack compares bits of conntrack's state or status with 0.
func Conntrack(key expr.CtKey, bits uint32, op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Ct{Register: 1, Key: key},
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: 4, Mask: binaryutil.NativeEndian.PutUint32(bits), Xor: make([]byte, 4)},
		&expr.Cmp{Op: op, Register: 1, Data: make([]byte, 4)},
	}
}

// Protocol matches an IPPROTO_*.
func Protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{number}},
	}
}

// Port loads the destination port.
func Port() expr.Any {
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// Field is an address of the header of IPv4 or IPv6.
type Field int

// The fields.
const (
	Source Field = iota
	Destination
)

// Load loads a field of the header of an address family.
func (f Field) Load(v4 bool) expr.Any {
	offset, size := uint32(8), uint32(16)
	if v4 {
		offset, size = 12, 4
	}
	if f == Destination {
		offset += size
	}
	return &expr.Payload{DestRegister: 1, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: size}
}

// In compares a field with a subnet; the rule's packets are of its family.
func (f Field) In(p netip.Prefix, op expr.CmpOp) []expr.Any {
	addr := p.Masked().Addr().AsSlice()
	mask := make([]byte, len(addr))
	for i := range p.Bits() {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return []expr.Any{
		f.Load(p.Addr().Is4()),
		&expr.Bitwise{SourceRegister: 1, DestRegister: 1, Len: uint32(len(addr)), Mask: mask, Xor: make([]byte, len(addr))},
		&expr.Cmp{Op: op, Register: 1, Data: addr},
	}
}
