package express

import (
	"errors"

	"github.com/scon-project/scon/internal/express/conntrack"
)

// Liberal lists the TCP connections of the calling thread's namespace of which
// conntrack accepts every sequence number: those that went express. Those that
// conntrack has not seen begin, and those of nftables' flowtables, look the same. If
// remove is set, conntrack forgets them.
func Liberal(remove bool) (conns []conntrack.Tuple, err error) {
	ct, err := conntrack.Open()
	if err != nil {
		return nil, err
	}
	defer ct.Close()
	var found []conntrack.Conn
	err = ct.Dump(func(c conntrack.Conn) {
		if c.Liberal() {
			found = append(found, c)
		}
	})
	if err != nil {
		return nil, err
	}
	for _, c := range found {
		conns = append(conns, c.Orig)
		if !remove {
			continue
		}
		if err := ct.Delete(c); err != nil && !errors.Is(err, conntrack.ErrNotFound) {
			return conns, err
		}
	}
	return conns, nil
}
