package changes

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/scon-project/scon/internal/host/nlmsg"
)

// policyGroup is the multicast group XFRMNLGRP_POLICY.
const policyGroup = 4

// openIPsec follows IPsec policies: a new one may apply to connections that
// have been sent in the clear. It returns nil on a kernel without IPsec.
func openIPsec(out *output, l limits) (source, error) {
	sock, err := nlmsg.Open(nlmsg.Options{Family: unix.NETLINK_XFRM, Groups: []uint32{policyGroup}, Buffer: l.buffer})
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("watch IPsec policies: %w", err)
	}
	return &announced{Socket: sock, out: out, what: "IPsec policy", evaluate: judgePolicy}, nil
}

func judgePolicy(nlmsg.Message) (Event, bool) {
	return Event{Kind: IPsec, Reason: "IPsec policy added, changed or removed", Stale: true}, true
}
