// An OpenID Connect provider that others have written: node oidc.mjs PORT BASE_URL, until its input ends. It signs in
// whoever gives a name; "anna" is a designer and an operator, everybody else is in no group.
import Provider from "oidc-provider";

const [port, base] = process.argv.slice(2);
const GROUPS = { anna: ["design", "ops"], ben: ["design"] };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: "darkroom",
    client_secret: "a-secret-of-the-test",
    redirect_uris: [`${base}/console/oidc/callback`],
    post_logout_redirect_uris: [`${base}/console`],
  }],
  pkce: { required: () => true },
  claims: { openid: ["sub"], profile: ["preferred_username"], groups: ["groups"] },
  findAccount: (_, id) => ({ accountId: id, claims: () => ({ sub: id, preferred_username: id, groups: GROUPS[id] ?? [] }) }),
  cookies: { keys: ["of the test"] },
  ttl: { Interaction: 600, Session: 600, Grant: 600, AccessToken: 600, AuthorizationCode: 60, IdToken: 600 },
});
const server = provider.listen(Number(port), "127.0.0.1", () => console.log("ready"));
process.stdin.resume().on("end", () => process.exit(server.close() && 0));
