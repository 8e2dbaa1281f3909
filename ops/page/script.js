(function () {
  window.__AGENT_CANVAS_LOCK_TO_CLOUD__ = location.origin;
  window.__AGENT_CANVAS_DO_NOT_TRACK__ = true;
  try {
    localStorage.setItem("openhands-onboarded", "1");
  } catch (e) {}
  // The page asks by itself to resume what it finds paused. Each such request says how many
  // milliseconds ago a person did something. One that the node refuses for that waits for its button,
  // and is repeated, too, when somebody turns to the field for a message.
  const header = "X-Bivouac-Act", send = window.fetch;
  const repeats = '#bivouac-resume, [data-testid="chat-input"], [data-testid="error-message-banner-retry"]';
  let acted = 0, waiting = null;
  function act(e) {
    if (!e.isTrusted) return;
    acted = Date.now();
    if (waiting && e.key !== "Tab" && e.target.closest && e.target.closest(repeats)) waiting();
  }
  addEventListener("keydown", act, true);
  addEventListener("pointerdown", act, true);
  // asked is over when the page of the refused request is left, too: the next asks again.
  function asked(repeat) {
    const at = location.pathname, note = document.createElement("div"), button = document.createElement("button");
    note.style.cssText = "position:fixed;top:12px;left:50%;transform:translateX(-50%);z-index:9999;" +
      "padding:8px 12px;border-radius:8px;background:#27272a;color:#fafafa;font:14px sans-serif";
    note.setAttribute("role", "status");
    note.textContent = "This sandbox is paused. ";
    button.id = "bivouac-resume";
    button.textContent = "Resume";
    button.style.cssText = "margin-left:8px;text-decoration:underline;cursor:pointer";
    note.append(button);
    document.documentElement.append(note);
    const left = setInterval(() => location.pathname === at || end(), 500);
    function end() {
      clearInterval(left);
      note.remove();
      if (waiting === wake) waiting = null;
    }
    function wake() {
      end();
      repeat();
    }
    if (waiting) waiting.end();
    waiting = wake;
    wake.end = end;
  }
  async function resume(url, init) {
    for (let signal = init.signal; ; signal = undefined) {
      const headers = new Headers(init.headers);
      if (acted) headers.set(header, String(Date.now() - acted));
      const answer = await send(url, Object.assign({}, init, { headers, signal }));
      if (answer.headers.get(header) !== "required") return answer;
      await new Promise(asked);
    }
  }
  // A code is allowed by who has seen whose it is: a link with somebody else's code looks the same.
  async function allow(url, init) {
    const headers = { "Content-Type": "application/x-www-form-urlencoded" };
    const look = await send("/oauth/device/look", { method: "POST", headers, body: init.body, credentials: "include" });
    if (!look.ok) return look;
    const device = await look.json();
    const text = `Let "${device.name}", which asks from ${device.address}, act as ${device.user}?\n\n` +
      "Go on only if you have just started it yourself.";
    return confirm(text) ? send(url, init) : new Response(null, { status: 403 });
  }
  window.fetch = function (url, init) {
    if (init && String(url) === "/oauth/device/verify-authenticated") return allow(url, init);
    if (init && init.method === "POST" && /\/api\/v1\/sandboxes\/[^/?]+\/resume$/.test(String(url)))
      return resume(url, init);
    return send.apply(window, arguments);
  };
})();
