package liberal

import (
	"testing"

	"github.com/scon-project/scon/test/bed/nstest"
)

// Chains of the family bridge are found, those of other families are not meant.
func TestBridgeRules(t *testing.T) {
	ns := nstest.New(t)
	nstest.Run(t, ns, `
		nft add table inet x
		nft add chain inet x c { type filter hook prerouting priority 0 ; }`)
	nstest.Do(t, ns, func() {
		if reason := bridgeRules(); reason != "" {
			t.Errorf("without chains: %q", reason)
		}
	})
	nstest.Run(t, ns, `
		nft add table bridge x
		nft add chain bridge x c { type filter hook forward priority 0 ; }`)
	nstest.Do(t, ns, func() {
		if reason := bridgeRules(); reason == "" {
			t.Error("a chain was not found")
		}
	})
}
