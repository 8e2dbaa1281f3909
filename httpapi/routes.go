package httpapi

import (
	"net/http"
	"slices"

	"bivouac.dev/bivouac/httpapi/operators"
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
)

// Path prefixes.
const (
	pathSandboxes     = "/api/v1/sandboxes"
	pathSpecs         = "/api/v1/sandbox-specs"
	pathConversations = "/api/v1/app-conversations"
	pathStartTasks    = pathConversations + "/start-tasks"
	pathTaskSetup     = "/api/v1/start-tasks/:task_id/setup"
	pathWebhooks      = "/api/v1/webhooks"
	pathEvents        = "/api/v1/conversation/:conversation_id/events"
	pathOperator      = "/api/v1/operator"
	pathSecrets       = "/api/v1/secrets"
	pathKeys          = "/api/keys"
)

// routes is the route table of the whole API. The router, the metrics and the tests use it.
func routes() []route {
	return slices.Concat(seedRoutes(), sandboxRoutes(), callerRoutes(), accountRoutes(), installationRoutes(),
		conversationRoutes(), settingsV1Routes(), profileRoutes(), organizationRoutes(), secretRoutes(), modelRoutes(),
		agentServerRoutes(), eventRoutes(), ownedRoutes(), clientRoutes(), nodeRoutes(), sessionRoutes(), deviceRoutes(),
		openRoutes())
}

// seedRoutes are the seed document's endpoints of settings and conversations, and those around them.
func seedRoutes() []route {
	const get, post, patch, del = http.MethodGet, http.MethodPost, http.MethodPatch, http.MethodDelete
	return []route{
		// V0.
		{name: "settings.put", method: post, path: "/api/settings", access: user, format: response.FormatError,
			internal: "Something went wrong storing settings", handle: (*Server).handleSettingsPut},
		{name: "settings.get", method: get, path: "/api/settings", access: user, format: response.FormatError,
			handle: (*Server).handleSettingsGet},
		{name: "conversation.v0_start", method: post, path: "/api/conversations", access: user, format: response.FormatStatus,
			handle: (*Server).handleV0Start},
		{name: "providers.replace", method: post, path: "/api/add-git-providers", access: user, format: response.FormatError,
			internal: "Something went wrong storing git providers", handle: (*Server).handleProvidersReplace},

		// V1.
		{name: "conversation.start", method: post, path: pathConversations, access: user, handle: (*Server).handleStart},
		{name: "conversation.list", method: get, path: pathConversations, access: user,
			handle: (*Server).handleConversationList},
		{name: "conversation.search", method: get, path: pathConversations + "/search", access: user,
			handle: (*Server).handleConversationSearch},
		{name: "conversation.count", method: get, path: pathConversations + "/count", access: user,
			handle: (*Server).handleConversationCount},
		{name: "conversation.send_message", method: post, path: pathConversations + "/:conversation_id/send-message",
			access: user, handle: (*Server).handleSendMessage},
		{name: "conversation.update", method: patch, path: pathConversations + "/:conversation_id", access: user,
			handle: (*Server).handleConversationUpdate},
		{name: "conversation.delete", method: del, path: pathConversations + "/:conversation_id", access: user,
			handle: (*Server).handleConversationDelete},
		{name: "start_task.get", method: get, path: pathStartTasks, access: user, handle: (*Server).handleStartTaskGet},
		{name: "start_task.search", method: get, path: pathStartTasks + "/search", access: user,
			handle: (*Server).handleStartTaskSearch},
		{name: "start_task.count", method: get, path: pathStartTasks + "/count", access: user,
			handle: (*Server).handleStartTaskCount},
		{name: "start_task.setup", method: post, path: pathTaskSetup, access: user, handle: (*Server).handleStartTaskSetup},
	}
}

// sandboxRoutes are a user's routes to sandboxes and to the specs that they are made of.
func sandboxRoutes() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []route{
		{name: "sandbox.search", method: get, path: pathSandboxes + "/search", access: user,
			handle: (*Server).handleSandboxSearch},
		{name: "sandbox.get", method: get, path: pathSandboxes, access: user, handle: (*Server).handleSandboxGet},
		{name: "sandbox.create", method: post, path: pathSandboxes, access: user, handle: (*Server).handleSandboxCreate},
		{name: "sandbox.pause", method: post, path: pathSandboxes + "/:sandbox_id/pause", access: user,
			handle: (*Server).handleSandboxPause},
		{name: "sandbox.resume", method: post, path: pathSandboxes + "/:sandbox_id/resume", access: user,
			handle: (*Server).handleSandboxResume},
		{name: "sandbox.accept_workspace", method: post, path: pathSandboxes + "/:sandbox_id/accept-workspace", access: user,
			handle: (*Server).handleSandboxAcceptWorkspace},
		{name: "sandbox.rotate_key", method: post, path: pathSandboxes + "/:sandbox_id/rotate-key", access: user,
			handle: (*Server).handleSandboxRotateKey},
		{name: "sandbox.share", method: post, path: pathSandboxes + "/:sandbox_id/ports/:port/share", access: user,
			handle: (*Server).handleSandboxShare},
		{name: "sandbox.shares", method: get, path: pathSandboxes + "/:sandbox_id/shares", access: user,
			handle: (*Server).handleSandboxShares},
		{name: "sandbox.unshare", method: del, path: pathSandboxes + "/:sandbox_id/ports/:port/share", access: user,
			handle: (*Server).handleSandboxUnshare},
		{name: "sandbox.delete", method: del, path: pathSandboxes + "/:sandbox_id", access: user,
			handle: (*Server).handleSandboxDelete},
		{name: "sandbox.logs", method: get, path: pathSandboxes + "/:sandbox_id/logs", access: user,
			handle: (*Server).handleSandboxLogs},
		{name: "user.me", method: get, path: "/api/v1/users/me", access: user, handle: (*Server).handleUserMe},
		{name: "spec.search", method: get, path: pathSpecs + "/search", access: user, handle: (*Server).handleSpecSearch},
		{name: "spec.get", method: get, path: pathSpecs, access: user, handle: (*Server).handleSpecGet},
	}
}

// callerRoutes are a caller's routes to its own keys, and a page's to its sandboxes.
func callerRoutes() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []route{
		{name: "own_key.current", method: get, path: pathKeys + "/current", access: user,
			handle: (*Server).handleOwnKeyCurrent},
		{name: "own_key.list", method: get, path: pathKeys, access: user, handle: (*Server).handleOwnKeyList},
		{name: "own_key.create", method: post, path: pathKeys, access: user, handle: (*Server).handleOwnKeyCreate},
		{name: "own_key.delete", method: del, path: pathKeys + "/:key_id", access: user,
			handle: (*Server).handleOwnKeyDelete},
		{name: "cloud_proxy.call", method: post, path: "/api/cloud-proxy", access: user,
			handle: (*Server).handleCloudProxy},
	}
}

// accountRoutes are the operators' routes to keys, specs and users.
func accountRoutes() []route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	return []route{
		{name: "api_key.list", method: get, path: pathOperator + "/keys", access: operator,
			handle: byOperator((*operators.Server).APIKeyList)},
		{name: "api_key.create", method: post, path: pathOperator + "/keys", access: operator,
			members: []string{"user", "name", "operator", "expires_at"}, handle: byOperator((*operators.Server).APIKeyCreate)},
		{name: "api_key.revoke", method: del, path: pathOperator + "/keys/:id", access: operator,
			handle: byOperator((*operators.Server).APIKeyRevoke)},
		{name: "api_key.enable", method: post, path: pathOperator + "/keys/:id/enable", access: operator,
			handle: byOperator((*operators.Server).APIKeyEnable)},
		{name: "api_key.disable", method: post, path: pathOperator + "/keys/:id/disable", access: operator,
			handle: byOperator((*operators.Server).APIKeyDisable)},
		{name: "spec.list", method: get, path: pathOperator + "/specs", access: operator,
			handle: byOperator((*operators.Server).SpecList)},
		{name: "spec.apply", method: post, path: pathOperator + "/specs", access: operator,
			members: []string{"specs", "replace"}, handle: byOperator((*operators.Server).SpecApply)},
		{name: "spec.delete", method: del, path: pathOperator + "/specs/*id", access: operator,
			handle: byOperator((*operators.Server).SpecDelete)},
		{name: "spec.pool", method: post, path: pathOperator + "/specs/*id", access: operator, members: []string{"size"},
			handle: byOperator((*operators.Server).SpecPool)},
		{name: "user.list", method: get, path: pathOperator + "/users", access: operator,
			handle: byOperator((*operators.Server).UserList)},
		{name: "user.configure", method: put, path: pathOperator + "/users/:id", access: operator,
			members: []string{"policy", "limits"}, handle: byOperator((*operators.Server).UserPut)},
		{name: "user.disable", method: post, path: pathOperator + "/users/:id/disable", access: operator,
			handle: byOperator((*operators.Server).UserDisable)},
		{name: "user.delete", method: del, path: pathOperator + "/users/:id", access: operator,
			handle: byOperator((*operators.Server).UserDelete)},
		{name: "user.enable", method: post, path: pathOperator + "/users/:id/enable", access: operator,
			handle: byOperator((*operators.Server).UserEnable)},
	}
}

// installationRoutes are the operators' routes to the cluster as a whole.
func installationRoutes() []route {
	const get, post, put, del = http.MethodGet, http.MethodPost, http.MethodPut, http.MethodDelete
	return []route{
		{name: "backup.list", method: get, path: pathOperator + "/backups", access: operator,
			handle: byOperator((*operators.Server).BackupList)},
		{name: "member.list", method: get, path: pathOperator + "/members", access: operator,
			handle: byOperator((*operators.Server).MemberList)},
		{name: "member.transfer", method: put, path: pathOperator + "/transfer-leader", access: operator,
			members: []string{"to"}, handle: byOperator((*operators.Server).MemberTransfer)},
		{name: "member.remove", method: put, path: pathOperator + "/remove", access: operator,
			members: []string{"name", "force", "revoke", "fingerprint"}, handle: byOperator((*operators.Server).MemberRemove)},
		{name: "member.allow", method: put, path: pathOperator + "/allow", access: operator, members: []string{"name"},
			handle: byOperator((*operators.Server).MemberAllow)},
		{name: "member.replace", method: put, path: pathOperator + "/replace", access: operator,
			members: []string{"old", "new", "force", "revoke", "fingerprint"},
			handle:  byOperator((*operators.Server).MemberReplace)},
		{name: "protocol.get", method: get, path: pathOperator + "/protocol", access: operator,
			handle: byOperator((*operators.Server).ProtocolGet)},
		{name: "protocol.set", method: put, path: pathOperator + "/protocol", access: operator, members: []string{"version"},
			handle: byOperator((*operators.Server).ProtocolPut)},
		{name: "snapshot.save", method: get, path: pathOperator + "/snapshot", access: operator,
			handle: byOperator((*operators.Server).SnapshotSave)},
		{name: "snapshot.restore", method: post, path: pathOperator + "/restore", access: operator, upload: true,
			handle: byOperator((*operators.Server).SnapshotRestore)},
		{name: "config.get", method: get, path: pathOperator + "/config", access: operator,
			handle: byOperator((*operators.Server).ConfigGet)},
		{name: "config.set", method: put, path: pathOperator + "/config", access: operator,
			members: []string{"index", "policy", "limits", "git", "cors", "llm"},
			handle:  byOperator((*operators.Server).ConfigPut)},
		{name: "hold.get", method: get, path: pathOperator + "/hold", access: operator,
			handle: byOperator((*operators.Server).HoldGet)},
		{name: "hold.release", method: post, path: pathOperator + "/hold/release", access: operator,
			members: []string{"index"}, handle: byOperator((*operators.Server).HoldRelease)},
		{name: "copy.list", method: get, path: pathOperator + "/copies", access: operator,
			handle: byOperator((*operators.Server).CopyList)},
		{name: "orphan.list", method: get, path: pathOperator + "/orphans", access: operator,
			handle: byOperator((*operators.Server).OrphanList)},
		{name: "orphan.restore", method: post, path: pathOperator + "/orphans/:kind/:id/restore", access: operator,
			handle: byOperator((*operators.Server).OrphanRestore)},
		{name: "orphan.delete", method: del, path: pathOperator + "/orphans/:kind/:id", access: operator,
			handle: byOperator((*operators.Server).OrphanDelete)},
		{name: "cluster.status", method: get, path: pathOperator + "/status", access: operator,
			handle: byOperator((*operators.Server).Status)},
	}
}

// agentServerRoutes are what an agent server calls with its sandbox's key.
func agentServerRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{name: "sandbox.secrets", method: get, path: pathSandboxes + "/:sandbox_id/settings/secrets", access: sandboxKey,
			handle: (*Server).handleSandboxSecrets},
		{name: "sandbox.secret", method: get, path: pathSandboxes + "/:sandbox_id/settings/secrets/*secret_name",
			access: sandboxKey, handle: (*Server).handleSandboxSecret},
		{name: "webhook.conversation", method: post, path: pathWebhooks + "/conversations", access: sandboxKey,
			handle: (*Server).handleWebhookConversation},
		{name: "webhook.events", method: post, path: pathWebhooks + "/events/:conversation_id", access: sandboxKey,
			most: mostOfEvents, handle: (*Server).handleWebhookEvents},
		{name: "webhook.own_conversation", method: post, path: pathWebhooks + "/:sandbox_id/conversations",
			access: sandboxKey, fallback: true, handle: (*Server).handleWebhookConversation},
		{name: "webhook.own_events", method: post, path: pathWebhooks + "/:sandbox_id/events/:conversation_id",
			access: sandboxKey, fallback: true, most: mostOfEvents, handle: (*Server).handleWebhookEvents},
	}
}

// eventRoutes are what users read of the events of their conversations.
func eventRoutes() []route {
	const get = http.MethodGet
	return []route{
		{name: "event.search", method: get, path: pathEvents + "/search", access: user, handle: (*Server).handleEventSearch},
		{name: "event.count", method: get, path: pathEvents + "/count", access: user, handle: (*Server).handleEventCount},
		{name: "event.list", method: get, path: pathEvents, access: user, handle: (*Server).handleEventBatch},
		{name: "event.get", method: get, path: pathEvents + "/:event_id", access: user, fallback: true,
			handle: (*Server).handleEventGet},
	}
}

// openRoutes are the routes without authentication.
func openRoutes() []route {
	const get = http.MethodGet
	return []route{
		{name: "alive", method: get, path: "/alive", handle: (*Server).handleAlive},
		{name: "health", method: get, path: "/health", handle: (*Server).handleHealth},
		{name: "ready", method: get, path: "/ready", handle: (*Server).handleReady},
		{name: "web_client.config", method: get, path: "/api/v1/web-client/config", handle: (*Server).handleWebClientConfig},
		{name: "server_info", method: get, path: "/server_info", direct: true, handle: (*Server).handleServerInfo},
		{name: "docs", method: get, path: "/docs", direct: true, serve: (*Server).serveDocs},
		{name: "openapi", method: get, path: "/openapi.json", direct: true, serve: (*Server).serveDescription},
		{name: "metrics", method: get, path: "/metrics", direct: true, serve: (*Server).serveMetrics},
	}
}

// clientRoutes are the operators' routes to the machines that run sandboxes.
func clientRoutes() []route {
	const get, post = http.MethodGet, http.MethodPost
	return []route{
		{name: "client.list", method: get, path: pathOperator + "/clients", access: operator,
			handle: byOperator((*operators.Server).ClientList)},
		{name: "client.drain", method: post, path: pathOperator + "/clients/:client_id/drain", access: operator,
			handle: byOperator((*operators.Server).ClientDrain)},
		{name: "client.lost", method: post, path: pathOperator + "/clients/:client_id/lost", access: operator,
			handle: byOperator((*operators.Server).ClientLost)},
		{name: "client.enable", method: post, path: pathOperator + "/clients/:client_id/enable", access: operator,
			handle: byOperator((*operators.Server).ClientEnable)},
	}
}

// nodeRoutes are what a node shows of itself to operators.
func nodeRoutes() []route {
	const get = http.MethodGet
	return []route{
		{name: "node.log", method: get, path: pathOperator + "/log", access: operator,
			handle: byOperator((*operators.Server).NodeLog)},
		{name: "node.profile", method: get, path: pathOperator + "/pprof/:profile", access: operator,
			handle: byOperator((*operators.Server).NodeProfile)},
		{name: "node.debug", method: get, path: pathOperator + "/debug/:what", access: operator,
			handle: byOperator((*operators.Server).NodeDebug)},
	}
}

// ownedRoutes are the operators' routes to what all users have.
func ownedRoutes() []route {
	const get, post, del = http.MethodGet, http.MethodPost, http.MethodDelete
	return []route{
		{name: "sandbox.operator_accept_workspace", method: post,
			path: pathOperator + "/sandboxes/:sandbox_id/accept-workspace", access: operator,
			handle: (*Server).handleSandboxOperatorAcceptWorkspace},
		{name: "sandbox.operator_list", method: get, path: pathOperator + "/sandboxes", access: operator,
			handle: (*Server).handleOperatorSandboxList},
		{name: "sandbox.operator_get", method: get, path: pathOperator + "/sandboxes/:sandbox_id", access: operator,
			handle: (*Server).handleOperatorSandboxGet},
		{name: "sandbox.operator_pause", method: post, path: pathOperator + "/sandboxes/:sandbox_id/pause", access: operator,
			handle: (*Server).handleOperatorSandboxPause},
		{name: "sandbox.operator_resume", method: post, path: pathOperator + "/sandboxes/:sandbox_id/resume",
			access: operator, handle: (*Server).handleOperatorSandboxResume},
		{name: "sandbox.operator_rotate_key", method: post, path: pathOperator + "/sandboxes/:sandbox_id/rotate-key",
			access: operator, handle: (*Server).handleOperatorSandboxRotateKey},
		{name: "sandbox.operator_delete", method: del, path: pathOperator + "/sandboxes/:sandbox_id", access: operator,
			handle: (*Server).handleOperatorSandboxDelete},
		{name: "sandbox.operator_logs", method: get, path: pathOperator + "/sandboxes/:sandbox_id/logs", access: operator,
			handle: (*Server).handleOperatorSandboxLogs},
		{name: "sandbox.operator_shares", method: get, path: pathOperator + "/sandboxes/:sandbox_id/shares",
			access: operator, handle: (*Server).handleOperatorSandboxShares},
		{name: "sandbox.operator_unshare", method: del, path: pathOperator + "/sandboxes/:sandbox_id/ports/:port/share",
			access: operator, handle: (*Server).handleOperatorSandboxUnshare},
		{name: "usage.list", method: get, path: pathOperator + "/usage", access: operator,
			handle: byOperator((*operators.Server).UsageList)},
		{name: "conversation.operator_list", method: get, path: pathOperator + "/app-conversations", access: operator,
			handle: (*Server).handleOperatorConversationList},
		{name: "conversation.operator_get", method: get, path: pathOperator + "/app-conversations/:conversation_id",
			access: operator, handle: (*Server).handleOperatorConversationGet},
		{name: "conversation.operator_delete", method: del, path: pathOperator + "/app-conversations/:conversation_id",
			access: operator, handle: (*Server).handleOperatorConversationDelete},
	}
}

// byOperator makes a handler of the API of one of the operators' routes.
func byOperator(handle func(*operators.Server, *request.Call) (response.Response, error)) handler {
	return func(s *Server, c *call) (response.Response, error) { return handle(s.operators, &c.Call) }
}
