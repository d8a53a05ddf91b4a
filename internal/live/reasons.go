package live

// Reason is a reason for regular packets in plain words.
type Reason struct {
	Text string `json:"text"`
	Do   string `json:"do,omitempty"` // what helps, "" where nothing has to
}

// Reasons explains the reasons of package datapath by their names.
var Reasons = map[string]Reason{
	"not_ip":          {Text: "packets that are not IP, such as ARP"},
	"not_tcp_udp":     {Text: "neither TCP nor UDP, such as ping"},
	"vlan_tag":        {Text: "packets with a VLAN tag"},
	"ip_options":      {Text: "packets with IP options"},
	"fragment":        {Text: "fragments of packets", Do: "send smaller datagrams"},
	"ttl_expires":     {Text: "the packet's time to live ends here"},
	"malformed":       {Text: "wrong lengths, checksums or flags of TCP"},
	"tcp_syn_fin_rst": {Text: "beginnings and ends of connections"},
	"no_entry":        {Text: "connections that SCON does not know, or not yet"},
	"composing":       {Text: "connections whose decision is not recorded yet"},
	"closed":          {Text: "connections that have ended"},
	"new_generation":  {Text: "the first packets after a change", Do: "see what changes so often"},
	"lease_ended":     {Text: "packets that confirm a decision, or follow a longer one", Do: "explain the connection: it says what bounds its lease"},
	"identity":        {Text: "another device, MAC address, mark or DSCP than the packet that was decided about"},
	"too_long":        {Text: "longer than any packet so far in this lease"},
	"inert":           {Text: "the daemon was silent", Do: "see the daemon's log and its load"},
	"paused":          {Text: "SCON or the container is paused", Do: "scon resume"},
	"ipsec":           {Text: "packets that IPsec has decrypted"},
	"untied":          {Text: "packets that left the regular way changed, or were overtaken"},
	"per_packet_rule": {Text: "connections that a rule that judges single packets may touch", Do: "explain the container: it names the rule"},
}
