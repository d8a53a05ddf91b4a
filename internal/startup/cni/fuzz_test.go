package cni

import (
	"errors"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// Every input is a valid network, or is refused with a code of the specification.
func FuzzParse(f *testing.F) {
	f.Add([]byte(with(`"kind": "ovs", "bridge": "b", "vlan": 5, "tenant": "a"`)))
	f.Add([]byte(with(`"qos": {"ingressRate": 8000}, "rules": [{"direction": "ingress", "cidr": "10.0.0.0/8"}]`)))
	f.Add([]byte(with(`"ipam": {"type": "scon", "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]], "routes": [{"dst": "::/0"}]}`)))
	f.Add([]byte(`{"ipam": {"type": "scon", "subnet": "0.0.0.0/0", "rangeStart": "255.255.255.254"}, "name": "n"}`))
	f.Fuzz(func(t *testing.T, input []byte) {
		c, err := Parse(input)
		if err != nil {
			refused := new(types.Error)
			if !errors.As(err, &refused) || refused.Code != types.ErrDecodingFailure && refused.Code != types.ErrInvalidNetworkConfig {
				t.Fatalf("refused with %v", err)
			}
			return
		}
		if c.Name == "" || c.Kind == "" || c.IPAM.Type == OwnIPAM && len(c.Sets) == 0 || len(c.Routes) > len(c.IPAM.Routes) {
			t.Fatalf("%+v", c)
		}
		for _, set := range c.Sets {
			for _, r := range set {
				if r.End.Less(r.Start) || !r.Subnet.Contains(r.Start) || !r.Subnet.Contains(r.Gateway) {
					t.Fatalf("range %+v", r)
				}
			}
		}
	})
}
