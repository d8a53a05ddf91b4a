package differential

import "strings"

// stateful are rules with objects, maps, sets and programs of their own, and those that ask
// for a packet's route, socket, queue or copy.
var stateful = []feature{
	{"forward_filter", "THERE quota name few drop", ""},
	{"forward_filter", "THERE limit name slow drop", ""},
	{"forward_filter", "ip saddr vmap { 172.17.0.3 : drop, 198.18.0.0/18 : accept, * : continue }", ""},
	{"forward_filter", "ip saddr @timed drop", ""},
	{"forward_filter", "ip saddr vmap @judged", ""},
	{"forward_filter", "ip daddr . th dport vmap { 172.17.0.3 . 1-65535 : drop, * : continue }", ""},
	{"forward_filter", "", "THERE -j NFQUEUE --queue-num 7 --queue-bypass"},
	{"forward_filter", "", "THERE -j NFQUEUE --queue-num 7"},
	{"forward_filter", "THERE log group 7", "THERE -j NFLOG --nflog-group 7"},
	{"forward_filter", "ct expiration > 1s THERE drop", "THERE -m conntrack --ctexpire 1:4294967 -j DROP"},
	{"forward_filter", "THERE ct label set 7", ""},
	{"forward_filter", "ct label 7 drop", ""},
	{"forward_filter", "ct zone 3 drop", ""},
	{"forward_filter", "ct avgpkt > 80 THERE drop", "THERE -m connbytes --connbytes 80: --connbytes-dir both --connbytes-mode avgpkt -j DROP"},
	{"forward_filter", "meta priority 1:2 drop", ""},
	{"forward_filter", "rt classid 7 drop", "-m realm --realm 7 -j DROP"},
	{"forward_filter", "meta ipsec exists drop", "-m policy --dir in --pol ipsec -j DROP"},
	{"forward_filter", "rt mtu < 1400 drop", ""},
	{"forward_filter", "rt mtu < 850 drop", ""},
	{"forward_filter", "rt ip nexthop 10.77.0.9 drop", ""},
	{"forward_filter", "tcp option maxseg size > 500 drop", "-p tcp --tcp-flags SYN,RST SYN -m tcpmss --mss 501:65535 -j DROP"},
	{"forward_filter", "THERE meta time > \"2020-01-01 00:00:00\" drop", "THERE -m time --datestart 2020-01-01 -j DROP"},
	{"forward_filter", "symhash mod 2 0 drop", ""},
	{"forward_filter", "iifgroup 0 THERE drop", "THERE -m devgroup --src-group 0x0 -j DROP"},
	{"forward_filter", "meta iifkind \"bridge\" ip daddr @some drop", ""},
	{"pre_raw", "", "-m rpfilter --invert -j DROP"},
	{"forward_filter", "meta l4proto udp ct original proto-dst 1-6000 drop", "-m conntrack --ctorigdstport 1:6000 -j DROP"},
	{"forward_filter", "@nh,8,8 & 0xfc == 0x28 drop", "-m tos --tos 0x28/0xff -j DROP"},
	{"forward_filter", "meta mark set numgen inc mod 3", "THERE -m cpu ! --cpu 4095 -j DROP"},
	{"forward_filter", "", "-m helper --helper ftp -j DROP"},
	{"forward_filter", "", "-p tcp -m string --algo kmp --from 30 --to 60 --hex-string |00| -j DROP"},
	{"forward_filter", "", `-m bpf --bytecode "4,48 0 0 9,21 0 1 17,6 0 0 0,6 0 0 65535" -j ACCEPT`},
	{"forward_filter", "", "-m set --match-set diffset src -j DROP"},
	{"forward_filter", "", "THERE -m set --match-set diffset dst\n-A FORWARD -m set --match-set diffset src ! --update-counters --packets-gt 9 -j DROP"},
	{"forward_filter", "", "-m set --match-set diffset src\n-A FORWARD -m conntrack --ctstate NEW -m set --match-set diffset src ! --update-counters --packets-gt 30 -j DROP"},
	{"forward_filter", "", "THERE -m set --match-set diffset src --packets-gt 14 -j DROP"},
	{"forward_mangle", "tcp flags syn tcp option maxseg size set rt mtu", "-p tcp --tcp-flags SYN,RST SYN -j TCPMSS --clamp-mss-to-pmtu"},
	{"forward_mangle", "reset tcp option timestamp", "-p tcp -j TCPOPTSTRIP --strip-options timestamp"},
	{"forward_mangle", "meta mark set symhash mod 4", "-j HMARK --hmark-tuple sport,dport --hmark-mod 4 --hmark-offset 1 --hmark-rnd 0xcafe"},
	{"forward_mangle", "THERE meta mark set ip saddr map { 172.17.0.3 : 5, 198.18.0.0/18 : 6, * : 7 }", "THERE -j MARK --xor-mark 6"},
	{"pre_raw", "THERE ct zone set 3", "THERE -j CT --zone 3"},
	{"pre_raw", "THERE meta nftrace set 1", "THERE -j TRACE"},
	{"pre_raw", "", "THERE -j CT --ctevents new,destroy"},
	{"pre_mangle", "socket transparent 1 drop", "-m socket --transparent -j DROP"},
	{"pre_mangle", "THERE tproxy ip to :7777", "THERE -j TPROXY --on-port 7777 --tproxy-mark 0x9"},
	{"pre_mangle", "fib daddr . iif type local meta mark set 7", "-m addrtype --dst-type LOCAL --limit-iface-in -j MARK --set-mark 7"},
	{"post_mangle", "meta skuid 0 drop", "-m owner --uid-owner 0 -j DROP"},
	{"post_mangle", "meta cgroup 7 drop", "-m cgroup --cgroup 7 -j DROP"},
	{"post_mangle", "THERE meta priority set ip saddr map { 172.17.0.2 : 1:3, 172.17.0.3 : 1:4 }", "THERE -j IDLETIMER --timeout 600 --label diff"},
	{"inet_ingress", "ip dscp 10 drop", ""},
	{"inet_ingress", "ip protocol udp ip length > 200 drop", ""},
	{"port_egress", "ip protocol udp ip length > 200 drop", ""},
	{"port_egress", "ip dscp 10 meta mark set 5", ""},
	{"port_egress", "ip ttl set 33", ""},
	{"bridge_ingress", "ip protocol udp ip length > 200 drop", ""},
	{"bridge_ingress", "ip dscp 10 meta mark set 5", ""},
	{"bridge_egress", "ip protocol udp ip length > 200 drop", ""},
	{"bridge_egress", "ip dscp set 12", ""},
}

// objects are in each table.
const objects = ` quota few { over 3000 bytes }
 limit slow { rate over 1/hour burst 14 packets }
 map judged { type ipv4_addr : verdict; flags timeout; elements = { 172.17.0.3 timeout 1h : drop, 172.17.0.2 timeout 1h : accept }; }
 set timed { type ipv4_addr; flags timeout; elements = { 172.17.0.3 timeout 1h }; }
`

// ipset is the set of ipset that the rules name, empty of counts.
func (r ruleset) ipset(rules string) string {
	if !strings.Contains(rules, "diffset") {
		return ""
	}
	name, family := "diffset", "inet"
	if r.IPv6 {
		name, family = "diffset6", "inet6"
	}
	script := "ipset -exist create " + name + " hash:ip counters family " + family + "\nipset flush " + name + "\n"
	for _, addr := range []string{"172.17.0.2", "172.17.0.3"} {
		if r.IPv6 {
			addr = overIPv6.Replace(addr)
		}
		script += "ipset add " + name + " " + addr + "\n"
	}
	return script
}
