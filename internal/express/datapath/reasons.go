package datapath

// reasonNames names the reasons of bpf/lib/reasons.h. Index 0 is no reason.
var reasonNames = [expressReasonREASONS]string{
	expressReasonNOT_IP:          "not_ip",
	expressReasonNOT_TCP_UDP:     "not_tcp_udp",
	expressReasonVLAN_TAG:        "vlan_tag",
	expressReasonHAS_OPTIONS:     "ip_options",
	expressReasonFRAGMENT:        "fragment",
	expressReasonTTL_EXPIRES:     "ttl_expires",
	expressReasonMALFORMED:       "malformed",
	expressReasonTCP_SYN_FIN_RST: "tcp_syn_fin_rst",
	expressReasonNO_ENTRY:        "no_entry",
	expressReasonCOMPOSING:       "composing",
	expressReasonCLOSED:          "closed",
	expressReasonNEW_GENERATION:  "new_generation",
	expressReasonLEASE_ENDED:     "lease_ended",
	expressReasonIDENTITY:        "identity",
	expressReasonTOO_LONG:        "too_long",
	expressReasonINERT:           "inert",
	expressReasonPAUSED:          "paused",
	expressReasonIPSEC:           "ipsec",
	expressReasonUNTIED:          "untied",

	expressReasonPER_PACKET_RULE: "per_packet_rule",
}
