// Command bivouac is the whole program: a node of the control plane (`bivouac server`), the
// embedded development cluster (`bivouac dev`), the operator's commands (status, keys, specs, users,
// tls, operator), and those of users (login, run, conversations, sandboxes, models).
//
// It handles flags, environment variables, configuration files and signals. Only it imports
// every other package and connects them: the secret store to httpapi and scheduler, the cluster
// to both, the runner to the scheduler. It decides nothing about sandboxes, secrets or requests.
//
// # Exit codes
//
//	0  done
//	1  failed (one line on stderr says why; `server --check` and `operator doctor`: a line "fail"
//	   on stdout)
//	2  wrong usage: a flag, an argument, or a file with mistakes (stderr has every
//	   mistake, with file and line); `bivouac status`: something is wrong (stdout says what)
//	3  the run of `bivouac run`, `conversations attach` and `send` is stuck, or at a limit of
//	   iterations or cost
//	4  what the agent asked to do was rejected, and its run has ended
//	130  the run was interrupted or left, or the prompt of login was
//
// `sandboxes exec` ends with the exit code of its command.
//
// # The login
//
// Commands that call the API take the nodes' addresses, an API key and a CA certificate from flags
// (--address, --api-key-file, --ca-file), else from BIVOUAC_ADDR, BIVOUAC_API_KEY and BIVOUAC_CACERT,
// else from the file of `bivouac login`, $XDG_CONFIG_HOME/bivouac/login.json (~/.config without it).
// The file's key is sent to the file's addresses only, and a file that others can read is refused.
// Of several addresses, with commas, the next one is asked where one can't be reached or answers
// 503; a request that may have been carried out is repeated there only if that does no harm.
//
// # Following a run
//
// `run`, `conversations attach` and `send` read the conversation's events over a WebSocket through
// the proxy of a node. Where it ends, the next one begins with the time of the last event, and what
// came twice is dropped by its id. The run has ended when a status says so and all that was stored
// at the opening of the socket has arrived. Texts of models, tools and users are printed without
// what a terminal would obey.
//
// # Configuration of `bivouac server`
//
// SIGHUP reads the file again. At once change: log { level }, http { drain_delay drain_timeout },
// and of limits body_size, snapshot_size, rate_per_second, connections, connections_per_address
// and trusted_proxies. The log names every other setting that differs from what the node runs
// with: it needs a restart. A file with mistakes changes nothing. Certificates, Nomad's token and
// the files of Vault's AppRole are read again when they change, without a signal.
//
// The file of --config is HCL. All unknown members and values out of range are reported at
// once. Durations are strings such as "250ms" or "2m". Secrets are neither in the file nor in
// the environment: the file has the paths of files with secrets. deploy/config/node.hcl is a
// commented example.
//
// policy, git, cors, llm and of limits user, installation and on_limit are the cluster's. A cluster that
// has none takes those of its first leader's file; later `bivouac config set` alone changes them.
// A node whose file has other ones ignores them and logs how they differ. It is best to delete them
// from the files then.
//
//	node_name         required; 1 to 63 of a-z 0-9 "-"; the name in the node's certificate
//	data_dir          required; this node's directory; created with mode 0700
//	bootstrap_expect  how many nodes form the cluster on its first start: 1 to 9,
//	                  the same on each; 0 (default) waits until others add it
//	retry_join        peer addresses "host:port" of the nodes, tried until they answer; may hold
//	                  this node's own; required unless bootstrap_expect is 1
//
//	http {                            required; the API
//	  address                         required; "host:port" to listen on
//	  tls { cert_file, key_file }     HTTPS; read again when the files change
//	  drain_delay                     how long a stopping node serves on while /ready fails, longer
//	                                  than the load balancer's checks need; 5s; 0s to 5m
//	  drain_timeout                   how long it then waits for requests in progress and upgraded
//	                                  connections; 30s; 1s to 1h
//	}
//	peer {                            required; node to node, mutual TLS always
//	  address                         required; "host:port" to listen on
//	  advertise                       address the other nodes use; default: address
//	  ca_file, cert_file, key_file    required; made by `bivouac tls init` and `tls issue`; read
//	                                  again when they change
//	  ca_key_file                     the CA's key: the node renews its certificate when a third of
//	                                  its life is left, without a restart, and must be able to write
//	                                  the folder of cert_file; whoever steals the node can then join
//	                                  as any other; default: an operator renews it
//	  vault_pki { mount, role }       instead: Vault's PKI signs, in the session of vault {}; with a
//	                                  role for this node's name alone (deploy/vault/pki.hcl) a thief
//	                                  stays this node
//	  certificate_lifetime            of a renewed certificate; 720h; 10m to 8760h
//	}
//	raft {
//	  log_store                       without effect; "wal" lets the program before this one start on
//	                                  this data directory, "boltdb" is warned of
//	  heartbeat_timeout               500ms; 10ms to 1m
//	  election_timeout                500ms; not below heartbeat_timeout
//	  leader_lease_timeout            300ms; not above heartbeat_timeout
//	  snapshot_interval               interval of checks of the threshold
//	  snapshot_threshold              log entries until a snapshot is taken
//	  trailing_logs                   log entries kept after a snapshot
//	  trailing_bytes                  256 MiB; above it a snapshot is taken, and half of it is kept
//	  propose_timeout, read_timeout   how long a request waits for a leader
//	  dead_after                      1h; a voter silent for so long is replaced by a new member;
//	                                  "0s" never
//	  voters                          remove no dead voter below this number; bootstrap_expect
//	}
//	nomad {                           required
//	  address                         required; "http(s)://host:port"
//	  namespace, region               default: Nomad's own
//	  datacenters                     where sandboxes may run; default: any
//	  node_pool                       likewise; default: Nomad's own
//	  host_network                    the clients' host_network on whose address sandboxes have
//	                                  their ports; default: the client's main address
//	  docker_network                  the clients' docker network of containers whose spec says
//	                                  network_mode = "bridge"; default: docker's own bridge
//	  token_file                      file with the ACL token; read again when it changes
//	  ca_file, cert_file, key_file    for https; read again when they change
//	  volume_plugin                   makes the workspace volumes; default "mkdir"
//	  vault_role                      the tasks' role in Vault; default: Nomad's configuration
//	  variable                        path of the Nomad variable with the newest state's mark;
//	                                  default "bivouac/" and vault's prefix
//	  lost_after                      how long a client may be away before its sandboxes count as
//	                                  lost; 6h
//	}
//	vault {                           required
//	  address                         required; "http(s)://host:port"
//	  mount                           KV v2 mount; default "secret"
//	  prefix                          path below the mount; default "bivouac"
//	  namespace                       Vault namespace (Enterprise)
//	  auth_mount                      AppRole's mount; default "approle"
//	  role_id or role_id_file         one of them required
//	  secret_id_file                  required; the node logs in again when one of both files
//	                                  changes
//	  ca_file                         for https
//	  unreferenced_grace              the age from which an unreferenced secret is
//	                                  deleted, which can be undone; 15m
//	  secret_retention                how long it can be undone before it is destroyed; 168h
//	  collect_interval                interval of these checks; 10m
//	}
//	sandboxes {
//	  start_timeout                   default for specs that name none; 2m
//	  stop_timeout                    how long a pause may take before it is shown in ERROR; 1m
//	  pause_grace                     how long conversations may take to pause; 20s
//	  placement_grace                 how long to wait for a client with capacity; 15s
//	  orphan_retention                how long the workspace of a sandbox that is gone stays; 168h
//	  removals_per_hour               of sandboxes' remains, of each kind; 0 (default) is the larger
//	                                  of 5 and a tenth; above it they wait for an operator
//	  url                             how clients reach a sandbox's port: "proxy" (default), on
//	                                  any node; or a URL such as "http://{address}:{port}" with
//	                                  {address}, {port}, {sandbox} and {name} replaced
//	  domain                          with the proxy: "<port>-<id>.<domain>" instead of a path on
//	                                  the API's address; needs wildcard DNS (and certificate), see
//	                                  deploy/DOMAINS.md
//	  public_url                      how clients reach the API; default: as the request came
//	  wake                            a message, a run or ?wake=true resumes; true
//	  max_stale                       streams end on a node without a leader after; 5m
//	  api_urls                        list of the nodes' URLs as sandboxes reach them, tried in turn;
//	                                  with them sandboxes use the model gateway and get no model
//	                                  key; a sandbox learns a change when it is started again
//	}
//	policy {                          a spec's and a user's policy override it, member by member;
//	                                  each is a duration or "never" (default)
//	  idle_timeout                    pause a sandbox that was unused, with an idle agent, for so
//	                                  long
//	  max_running                     pause a sandbox that has been running for so long
//	  delete_paused_after             delete a sandbox that has been paused for so long
//	}
//	limits {
//	  body_size                       bytes of a request body; 6 MiB
//	  snapshot_size                   bytes of a file that is restored; 16 GiB
//	  rate_per_second                 requests of one user or sandbox, or of one client address
//	                                  without a good key, before each is delayed by a second; 429
//	                                  above twice that; 500; 0 is no limit
//	  connections                     open at a time, WebSockets included, 64 to 1048576; 16384, or
//	                                  what file descriptors allow; above it the oldest without a
//	                                  good key is closed, then the longest idle, else the new one
//	                                  gets 503
//	  connections_per_address         the same for one client address (an IPv6 /64); 512; 0 is no
//	                                  limit
//	  trusted_proxies                 addresses whose X-Forwarded-For is trusted, and which have no
//	                                  limit of connections_per_address; behind a load balancer that
//	                                  is not named all users are one address, and share its limits
//	                                  and its 20 sign-ins
//	  user { ... }                    of each user without own limits (`bivouac users set`)
//	  installation { ... }            of all users together; both have these members, where 0 is
//	                                  no limit, and more is answered 429; a cluster that has run
//	                                  before keeps its own until `bivouac config set`:
//	    running_sandboxes             that should run, those that start or fail included; 20 of a
//	                                  user, 1000 in all
//	    total_sandboxes               paused ones too; 200 and 10000
//	    starts_per_minute             creations, resumes and conversation starts; 60 of a user, 0
//	                                  in all
//	    cpu, memory                   MHz and MiB of those that should run, by their specs; 0
//	    state_bytes                   what is kept in the state: settings, names of secrets,
//	                                  sandboxes, conversations, starts, results (from 1 MiB; by
//	                                  default 64 MiB of a user and 1 GiB in all, never unlimited)
//	    event_bytes                   of a user alone: stored events of conversations; 10 GiB by
//	                                  default, never unlimited
//	  on_limit                        what a start over a user's running_sandboxes does: "refuse"
//	                                  (default), or "pause_oldest" of that user's sandboxes
//	}
//	git {
//	  verify_tokens                   ask the provider before a token is stored; true
//	  allowed_hosts                   provider hosts that may be asked although their address is
//	                                  private
//	}
//	cors { origins }                  web origins allowed; default: localhost only
//	llm {                             the model gateway of sandboxes (`/llm/`)
//	  gateway                         true (default): sandboxes get a token for it in place of the
//	                                  users' model keys; false: they get the keys
//	  hosts                           what it may connect to: "vendors" (default; those of the known
//	                                  vendors), "llm.example.org", "host:port", "*.example.org", which
//	                                  lead to public addresses with TLS only; and addresses, prefixes
//	                                  ("10.1.2.0/24") and "localhost" for private and loopback ones,
//	                                  whatever name leads there
//	  models                          what users may use: names, with or without the provider, and
//	                                  beginnings with "*"; default: every model
//	  prices                          a list of { model, input, output, cached_input, cache_write }, in
//	                                  US dollars for a million tokens; the longest model that matches
//	                                  counts, "*" is every other; the last two are input's by default;
//	                                  without one the vendor's list price counts where the vendor itself
//	                                  is asked; elsewhere the model is free, and no budget stops it
//	  servers                         a list of { host, ca, headers, slots }: certificates (PEM) that a
//	                                  server ("host" or "host:port") is trusted by beside the system's,
//	                                  headers of each request (no secrets), and how many requests of a
//	                                  node it has at once; others wait in a queue, users in turn
//	  profiles                        a list of { model, max_input_tokens, max_output_tokens, temperature,
//	                                  timeout, num_retries, stream, disable_vision, native_tool_calling }:
//	                                  what agents are told of models; the longest model counts
//	  budgets {                       in US dollars, above which requests are answered 429; 0 (default)
//	    per_task                      is none: of a conversation, beside the user's max_budget_per_task
//	    per_user_day                  of a user and a day (UTC)
//	  }
//	}
//	backup {                          the leader saves the whole state by itself; none by default
//	  dir                             required; the folder, created if its parent exists; all
//	                                  nodes may share it, or each has its own
//	  interval                        from one to the next, over all leaders; 1h; 10s to 720h
//	  retain                          how many a leader keeps in dir, by index; 24
//	}
//	workspaces {                      the leader copies the workspaces of sandboxes; not by default
//	  backup                          the store: "file:///DIRECTORY", which all nodes share, or
//	                                  "s3://BUCKET?region=REGION&prefix=PREFIX/", with the
//	                                  credentials of the environment or the machine
//	  interval                        from one copy of a running sandbox to the next; 15m; 10s to 720h;
//	                                  each pause makes one too
//	  retain                          how many copies of a workspace are kept; 3
//	  image                           the docker image with /sandbox-agent that reads and writes
//	                                  workspaces; default: the sandbox's, if that is sandbox-agent
//	  command                         the same program for raw_exec
//	}
//	ui {                              the web page at /, for people's browsers; none without the block
//	  enabled                         true (default)
//	  directory                       the folder that has it; default: the one that came with the
//	                                  program, "page" beside it or "../share/bivouac/page"
//	}
//	metrics {                         /metrics on a listener of its own; it leaves the API's
//	  address                         required; "host:port"; plain HTTP without a key: metrics have
//	                                  numbers and no secrets
//	}
//	log {
//	  level                           "debug", "info" (default), "warn", "error"
//	  format                          "text" (default) or "json"; ops/LOGS.md has the members
//	}
package main
