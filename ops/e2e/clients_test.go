package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bivouac.dev/bivouac/deploy/local"
	"bivouac.dev/bivouac/ops/e2e/testcluster"
	"bivouac.dev/bivouac/scheduler/agent/modeltest"
)

// methodsRefused are the methods of the published clients that are refused, with the status. All others
// have an answer, and the eight of automations the 404 that says that there are none.
var methodsRefused = map[string]int{
	// Repositories and tasks of git providers are not searched.
	"CloudClient.getInstallations": 404, "CloudClient.searchRepositories": 404,
	"CloudClient.getRepositoryBranches": 404, "CloudClient.getSuggestedTasks": 404,
	// The built-in agent server keeps no profiles.
	"ConversationClient.switchProfile": 404,
	// It installs no skills: those of the image, the user and the project are there.
	"SkillsClient.installSkill": 404, "SkillsClient.listInstalledSkills": 404, "SkillsClient.getInstalledSkill": 404,
	"SkillsClient.toggleSkill": 404, "SkillsClient.refreshSkill": 404, "SkillsClient.uninstallSkill": 404,
	"SkillsClient.getMarketplace": 404,
	// Nothing is shown without a key.
	"SharedClient.getSharedConversations": 404, "SharedClient.getSharedConversation": 404,
	"SharedClient.searchSharedEvents": 404,
}

// methodResult is what a method of a client came to.
type methodResult struct {
	Client, Method, Error string
	Status                int
}

// clientsFolder has what `make clients` installed.
func clientsFolder(t *testing.T) (packages, node string) {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	packages = filepath.Join(cache, "bivouac", "clients")
	_, err = os.Stat(filepath.Join(packages, "node_modules"))
	testcluster.Need(t, "clients", err == nil)
	node, err = exec.LookPath("node")
	testcluster.Need(t, "clients", err == nil)
	return packages, node
}

// TestClients_EachMethod calls each method of the published npm clients on every node and through HAProxy.
// The list of methods is the package's, so that a new one fails until it has a case.
func TestClients_EachMethod(t *testing.T) {
	packages, node := clientsFolder(t)
	testcluster.Need(t, "haproxy", local.HAProxyInstalled() != "")
	f := testcluster.Start(t, testcluster.Options{
		Gateway: true, LogLevel: "info",
		Config: fmt.Sprintf("%sllm {\n  hosts = [\"localhost\"]\n}\nui {\n  directory = %q\n}\n", balanced, pageFolder(t)),
	})
	ways, hosts := map[string]string{}, []string(nil)
	for _, n := range f.Nodes {
		ways[n.Name] = n.Base
		hosts = append(hosts, strings.TrimPrefix(n.Base, "http://"))
	}
	balancer, err := local.StartHAProxy(t.Context(), local.HAProxyOptions{Dir: t.TempDir(), Nodes: hosts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = balancer.Close() })
	testcluster.Eventually(t, "HAProxy has found the nodes", testcluster.Client{Base: balancer.Address}.Serves)
	ways["haproxy"] = balancer.Address
	model := modeltest.New(t, &modeltest.Script{Stories: []*modeltest.Story{
		{When: modeltest.When{User: "use a tool", Tool: "terminal"}, Answers: []modeltest.Answer{
			modeltest.Calls(modeltest.Tool("terminal", map[string]any{"command": "true"})), modeltest.Text("Hello."),
		}},
		{Answers: []modeltest.Answer{modeltest.Text("Hello.")}},
	}})
	for name, address := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			key := f.Nodes[0].NewKey(t, "user-of-"+name)
			cmd := exec.CommandContext(t.Context(), node, "clients/methods.mjs", packages, address, key, model.BaseURL())
			var said bytes.Buffer
			cmd.Stderr = &said
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s%s", err, out, &said)
			}
			judgeMethods(t, out)
		})
	}
}

// judgeMethods has a test for each method.
func judgeMethods(t *testing.T, lines []byte) {
	count, left := map[string]int{}, maps.Clone(methodsRefused)
	for line := range bytes.Lines(lines) {
		var got methodResult
		if err := json.Unmarshal(line, &got); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		name := got.Client + "." + got.Method
		want, refused := methodsRefused[name]
		if !refused {
			want = 200
		}
		delete(left, name)
		count[got.Client]++
		t.Run(name, func(t *testing.T) {
			if got.Status != want {
				t.Errorf("status %d, not %d: %s", got.Status, want, got.Error)
			}
		})
	}
	if len(left) > 0 {
		t.Errorf("no such methods: %q", slices.Sorted(maps.Keys(left)))
	}
	const want = "map[CloudClient:49 ConversationClient:31 SharedClient:4 SkillsClient:10]"
	if got := fmt.Sprint(count); got != want {
		t.Errorf("%s, not %s", got, want)
	}
}
