package deploy_test

import (
	"os"
	"strings"
	"testing"
)

// TestFiles_KeepTheirGuards: what the installed files must say, whatever else changes in them.
func TestFiles_KeepTheirGuards(t *testing.T) {
	for file, wants := range map[string][]string{
		"systemd/bivouac.service": {"\nLimitCORE=0\n", "\nNoNewPrivileges=yes\n", "--check\n",
			"\nStateDirectory=bivouac bivouac-backups\n", "\nRestartMaxDelaySec=", "\nLogRateLimitBurst="},
		"systemd/bivouac-sandbox-network.service": {"\nBefore=nomad.service\n", "\nRequiredBy=nomad.service\n"},
		"nomad/namespace.hcl":                     {`enabled_task_drivers = ["docker"]`},
		"nomad/client.hcl":                        {`node_pool = "sandboxes"`, "allow_privileged = false"},
		"vault/bivouac.hcl":                       {"secret_id_ttl=720h"},
		"haproxy/haproxy.cfg": {
			"acl private path,url_dec -m str -i /metrics /server_info /openapi.json /docs",
			"if private || operator !internal",
			"log stdout format raw local0 info", "user haproxy", "group haproxy", "stats socket /run/haproxy/admin.sock",
			"tcp-request connection reject if { sc0_conn_cur gt 512 }",
		},
	} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s does not say %q", file, want)
			}
		}
	}
}
