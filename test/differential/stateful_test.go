package differential

import (
	"fmt"
	"strings"
)

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
	{"forward_filter", "@ll,128,16 < 60 drop", ""},
	{"pre_mangle", "@ll,128,16 < 70 meta mark set 5", ""},
	{"bridge_pre", "@ll,128,16 < 70 ip protocol udp drop", ""},
	{"ingress", "@ll,128,16 < 70 ip protocol udp drop", ""},
	{"forward_mangle", "@nh,8,8 set @nh,8,8 ^ 0x1", ""},
	{"pre_mangle", "THERE ct mark set ct mark map { 0 : 1, 1 : 2, 2 : 3, 3 : 4, 4 : 5, 5 : 6, 6 : 7, 7 : 8, 8 : 9, 9 : 10, 10 : 11, 11 : 12, 12 : 13, 13 : 14, 14 : 15 }\n  ct mark > 13 drop", ""},
	{"pre_mangle", "THERE meta mark set ct mark ^ 0x10\n  ct mark set meta mark", ""},
	{"pre_mangle", "THERE meta mark set ct mark\n  meta mark set meta mark ^ 0x1\n  ct mark set meta mark", "THERE -j CONNMARK --restore-mark\n-A PREROUTING -j MARK --xor-mark 1\n-A PREROUTING -j CONNMARK --save-mark\n-A PREROUTING -m connmark --mark 1 -j DSCP --set-dscp 9"},
	{"pre_mangle", inSteps("THERE ct mark %d ct mark set %d", "\n  ") + "\n  ct mark 14 drop", inSteps("THERE -m connmark --mark %d -j CONNMARK --set-mark %d", xtNext) + xtNext + "-m connmark --mark 14 -j DROP"},
	{"forward_filter", inSteps("ct mark %d ct mark set %d", "\n  ") + "\n  BACK ct mark 14 drop", inSteps("-m connmark --mark %d -j CONNMARK --set-mark %d", "\n-A FORWARD ") + "\n-A FORWARD BACK -m connmark --mark 14 -j DROP"},
	{"pre_mangle", "THERE ct mark set 1\n  BACK ct mark 1 ct mark set 2\n  BACK ct mark 2 ip dscp set 9", "THERE -j CONNMARK --set-mark 1" + xtNext + "BACK -m connmark --mark 1 -j CONNMARK --set-mark 2" + xtNext + "BACK -m connmark --mark 2 -j DSCP --set-dscp 9"},
	{"pre_mangle", "ct mark 0 ct mark set 3\n  meta mark set ct mark\n  meta mark 4 ip dscp set 9", "-j CONNMARK --restore-mark" + xtNext + "-m mark --mark 0 -j MARK --set-mark 3" + xtNext + "-j CONNMARK --save-mark"},
	{"pre_mangle", "meta mark set ct mark\n  THERE meta mark < 14 meta mark set meta mark map { 0 : 1, 1 : 2, 2 : 9, 9 : 14 }\n  ct mark set meta mark\n  THERE ct mark 14 drop", ""},
	{"forward_filter", inSteps("ct label %d ct label set %d", "\n  ") + "\n  ct label set 0\n  THERE ct label 14 drop", inSteps("-m connlabel --label %d -m connlabel --label %d --set", "\n-A FORWARD ") + "\n-A FORWARD -m connlabel --label 0 --set\n-A FORWARD THERE -m connlabel --label 14 -j DROP"},
	{"forward_filter", "ct status assured ip dscp set 9", "-m conntrack --ctstatus ASSURED -j DROP"},
	{"forward_filter", "ct status seen-reply THERE drop", "-m conntrack --ctstatus SEEN_REPLY -j DROP"},
	{"forward_filter", "", "THERE -j LOG"},
	{"pre_mangle", "meta mark set ip dscp map { 10 : 5, 46 : 6 }", ""},
	{"pre_mangle", "THERE meta mark set meta length", ""},
	{"forward_filter", "tcp flags vmap { ack : accept, ack | psh : drop }", ""},
	{"forward_filter", "@ih,0,8 0x61 drop", ""},
	{"forward_filter", "meta iifkind veth drop", "-m physdev --physdev-is-bridged -j DROP"},
	{"pre_mangle", "fib daddr . mark type local meta mark set 7", "-m rpfilter --validmark --invert -j DROP"},
	{"pre_mangle", "fib saddr . mark . iif oif 0 drop", "-m rpfilter --loose --invert -j DROP"},
	{"forward_filter", "udp length > 100 drop", "-m addrtype --dst-type UNICAST --limit-iface-out -j DROP"},
	{"forward_filter", "@nh,4,4 > 5 drop", "-m recent --name dd --update --seconds 60 --hitcount 12 -j DROP"},
	{"forward_filter", "meta hour \"00:00\"-\"23:59\" THERE drop", "THERE -m time --weekdays Mon,Tue,Wed -j DROP"},
	{"post_mangle", "THERE @nh,96,32 set 0xac11004d", ""},
	{"post_mangle", "THERE tcp dport set 77", ""},
	{"post_mangle", "meta priority set ip dscp map { 10 : 1:5, 46 : 1:6 }", ""},
	{"forward_mangle", "THERE meta mark set meta mark << 1", "THERE -j CONNMARK --save-mark --left-shift-mark 1"},
	{"forward_mangle", "THERE ct mark set ct mark | 0x1", "THERE -j TEE --gateway 10.77.0.9"},
	{"bridge_pre", "vlan id 5 drop", ""},
	{"bridge_pre", "ip dscp set 12", ""},
	{"bridge_pre", "ip daddr 198.18.0.0/18 meta pkttype set host", ""},
	{"bridge_pre", "ether daddr 02:42:ac:11:00:01 ip protocol tcp ip dscp set 3", ""},
	{"bridge_pre", "ip saddr 172.17.0.2 ether daddr set 02:42:ac:11:00:01", ""},
	{"ingress", "ip protocol udp dup to eth0", ""},
	{"ingress", "ip dscp 10 fwd to eth0", ""},
	{"port_ingress", "ip dscp 10 fwd to eth0", ""},
	{"ingress", "ip ttl set 33", ""},
	{"ingress", "meta mark set 5", ""},
	{"ingress", "meta priority set 1:5", ""},
	{"forward_filter", "meta priority 1:5 drop", ""},
	{"port_ingress", "ip dscp 10 meta priority set 1:5", ""},
	{"egress", "meta priority 1:5 drop", ""},
	{"egress", "meta mark 5 ip dscp set 3", ""},
	{"egress", "ip protocol udp dup to eth0", ""},
	{"forward_filter", "ip daddr . ip protocol . th dport vmap { 172.17.0.2 . tcp . 1-65535 : drop, 172.17.0.3 . udp . 1000-2000 : drop }", "-p udp -m multiport --ports 1:6000 -j DROP"},
	{"pre_nat", "ip daddr 10.77.0.1 tcp dport 5900-6000 dnat ip to 172.17.0.2", "-d 10.77.0.11 -j NETMAP --to 172.17.0.2/32"},
	{"post_nat", "oifname eth0 snat ip to ip saddr map { 172.17.0.2 : 10.77.0.11, 172.17.0.3 : 10.77.0.1 }", "-s 172.17.0.2 -o eth0 -j NETMAP --to 10.77.0.11/32"},
	{"forward_filter", "ct state untracked drop", "-m conntrack --ctstate UNTRACKED -j DROP"},
	{"forward_filter", "ct original bytes > 900 THERE drop", "-m conntrack --ctrepldstport 1:65000 -j DROP"},
	{"pre_mangle", "ct event set new", "-m state --state NEW -j LOG"},
	{"forward_filter", "ct state new ct event set new", ""},
	{"pre_raw", "", "-j CT --ctevents new"},
	{"pre_raw", "THERE ct original zone set 3", "THERE -j CT --zone-orig 3"},
	{"pre_raw", "BACK ct original zone set 3", "THERE -j CT --zone-reply 3"},
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

// xtNext begins another rule of pre_mangle.
const xtNext = "\n-A PREROUTING "

// inSteps are rules that each give a connection the mark that the next one asks for: the last
// first, so that each packet meets one of them.
func inSteps(rule, next string) string {
	var all []string
	for from := 13; from >= 0; from-- {
		all = append(all, fmt.Sprintf(rule, from, from+1))
	}
	return strings.Join(all, next)
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
